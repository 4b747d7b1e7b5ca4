"""Tables of operations become recordings, as profiles do; only what no table tells is missing."""

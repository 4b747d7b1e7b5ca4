"""Tools for developing bubbleviz. They form a package so that tests can import parts of them."""

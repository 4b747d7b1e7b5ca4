"""Tools of the repository. They are a package so that tests can import shared parts."""

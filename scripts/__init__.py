"""Tools for the repository. They form a package, so that tests can import parts of them."""

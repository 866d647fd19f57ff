//! Harness of the tests: starts the daemon, asks it, reads the witnesses.

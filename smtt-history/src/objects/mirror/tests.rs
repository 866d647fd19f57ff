//! Plans of copies.

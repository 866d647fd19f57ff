//! Routes and refusals.

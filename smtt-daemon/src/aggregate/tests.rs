//! Replays of event sequences against the views.

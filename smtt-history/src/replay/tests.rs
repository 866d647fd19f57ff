//! Replays of short logs.

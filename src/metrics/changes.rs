//! What changed between two looks, as events.

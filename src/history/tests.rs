//! Stories of the fold.

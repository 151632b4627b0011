//! Stories of a Session.

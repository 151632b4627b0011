//! The wire form of Events.

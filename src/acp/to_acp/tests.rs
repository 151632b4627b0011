//! Events in, updates out.

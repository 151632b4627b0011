//! Street door.
fn main() {}

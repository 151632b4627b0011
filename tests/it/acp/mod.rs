//! Stories of an editor and its agent, told by the lines between them and by the Log.

mod conformance;
mod life;
mod turns;

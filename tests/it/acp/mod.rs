//! Stories of an editor and its agent, told by the lines between them and by the Log.

mod life;
mod turns;

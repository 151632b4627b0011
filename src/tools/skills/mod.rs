//! Tools for Skills: list them, and activate or show one.

mod skill_activation;
mod skill_view;
mod skills_list;

pub use skill_activation::skill_activation;
pub use skill_view::SkillViewTool;
pub use skills_list::SkillsListTool;

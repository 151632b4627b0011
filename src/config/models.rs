//! The models table: context windows, efforts, and what to assume of an unknown model.

/// What is known of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Model {
    pub name: &'static str,
    pub context_window: u64,
    pub default_effort: &'static str,
}

/// The built-in table.
pub struct ModelTable;

/// The window assumed for a model nobody has told us about; small on purpose.
pub const UNKNOWN_WINDOW: u64 = 128_000;

const MODELS: &[Model] = &[
    model("gpt-5.5", 272_000, "medium"),
    model("gpt-5.6-luna", 272_000, "medium"),
    model("gpt-5.6-sol", 272_000, "low"),
    model("gpt-5.6-terra", 272_000, "medium"),
    model("gpt-6-astra", 272_000, "low"),
    model("gpt-6-luna", 272_000, "medium"),
    model("gpt-6-sol", 272_000, "medium"),
    model("gpt-6.1-sol", 272_000, "low"),
    model("gpt-6.1-terra", 500_000, "low"),
];

const fn model(name: &'static str, context_window: u64, default_effort: &'static str) -> Model {
    Model { name, context_window, default_effort }
}

impl ModelTable {
    /// All known models, by name.
    pub fn all() -> &'static [Model] {
        MODELS
    }

    /// What is known of a model.
    pub fn find(name: &str) -> Option<&'static Model> {
        MODELS.iter().find(|model| model.name == name)
    }

    /// The context window, or a conservative guess.
    pub fn window(name: &str) -> u64 {
        Self::find(name).map_or(UNKNOWN_WINDOW, |model| model.context_window)
    }
}

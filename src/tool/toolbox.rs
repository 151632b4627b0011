//! The Toolbox: the tools of one Session, what the model is told about them, and whether a call
//! has the arguments it needs.

use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use jsonschema::Validator;
use serde_json::{Value, json};

use super::background::Background;
use super::bash::Bash;
use super::bash_input::BashInput;
use super::bash_output::BashOutput;
use super::bash_stop::BashStop;
use super::edit::Edit;
use super::glob::Glob;
use super::grep::Grep;
use super::list::List;
use super::patch::ApplyPatch;
use super::read::Read;
use super::resource_view::ResourceView;
use super::rewrite::Rewriter;
use super::seen::Seen;
use super::skill_view::SkillView;
use super::skills_list::SkillsList;
use super::update_plan::UpdatePlan;
use super::write::Write;
use super::{AnyTool, Commands, ToolError, ToolSpec};
use crate::config::Config;
use crate::error::Kind;
use crate::history::History;
use crate::resource::Shelf;
use crate::role::Role;
use crate::skill::Skills;

/// How many violations are told at once.
const TOLD_VIOLATIONS: usize = 10;

/// The tools of one Session, sorted by name, and guests behind them, sorted too; cheap to clone.
#[derive(Clone)]
pub struct Toolbox {
    entries: Arc<[Arc<Entry>]>,
    specs: Arc<[ToolSpec]>,
    /// How many are Pixir's own.
    own: usize,
    /// Where there are commands, those that outlive their calls.
    background: Option<Background>,
    /// What else has to come to rest after an interrupt.
    rest: Option<Rest>,
}

/// Ends what a tool started and left behind, and waits until it is gone.
pub type Rest = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

struct Entry {
    tool: Arc<dyn AnyTool>,
    /// Compiled when first needed, because many runs call few tools.
    validator: OnceLock<Option<Validator>>,
}

impl Toolbox {
    /// Holds these tools; of two with one name the later is kept.
    pub fn new(tools: impl IntoIterator<Item = Arc<dyn AnyTool>>) -> Self {
        let mut named: Vec<(ToolSpec, Arc<dyn AnyTool>)> =
            tools.into_iter().map(|tool| (tool.spec(), tool)).collect();
        named.reverse();
        named.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
        named.dedup_by(|(later, _), (earlier, _)| later.name == earlier.name);
        let (specs, tools): (Vec<_>, Vec<_>) = named.into_iter().unzip();
        let entry = |tool| Arc::new(Entry { tool, validator: OnceLock::new() });
        let own = specs.len();
        let entries = tools.into_iter().map(entry).collect();
        Self { entries, specs: specs.into(), own, background: None, rest: None }
    }

    /// The same tools, and those of others behind them: what the model knows best stays where it
    /// is, and so does the part of the prompt that a Provider has cached.
    #[must_use]
    pub fn with_guests(&self, guests: Vec<Arc<dyn AnyTool>>) -> Self {
        if guests.is_empty() {
            return self.clone();
        }
        let guests = Self::new(guests);
        let entries = self.entries.iter().chain(guests.entries.iter()).cloned();
        let specs = self.specs.iter().chain(guests.specs.iter()).cloned();
        let (background, rest) = (self.background.clone(), self.rest.clone());
        Self { entries: entries.collect(), specs: specs.collect(), own: self.own, background, rest }
    }

    /// The same tools and more of Pixir's own; what they leave behind is ended by `rest`.
    #[must_use]
    pub fn and(self, more: Vec<Arc<dyn AnyTool>>, rest: Rest) -> Self {
        let own = self.entries.iter().take(self.own).map(|entry| entry.tool.clone());
        Self { background: self.background, rest: Some(rest), ..Self::new(own.chain(more)) }
    }

    /// The tools that Pixir brings, for one Session with this History so far.
    pub fn built_in(config: &Config, commands: Commands, history: &History, shelf: Shelf) -> Self {
        let background = Background::new(config.bash.max_background, history);
        Self::sharing(config, commands, history, shelf, background)
    }

    /// The same, around commands that others may know already.
    pub fn sharing(
        config: &Config,
        commands: Commands,
        history: &History,
        shelf: Shelf,
        background: Background,
    ) -> Self {
        let seen = Seen::from_history(history);
        let rewriter = Rewriter::new(seen.clone());
        let patience = config.bash.max_timeout;
        let tools: [Arc<dyn AnyTool>; 13] = [
            Arc::new(ApplyPatch(rewriter.clone())),
            Arc::new(Bash::new(commands, config.bash.clone(), background.clone())),
            Arc::new(BashInput(background.clone())),
            Arc::new(BashOutput { background: background.clone(), patience }),
            Arc::new(BashStop(background.clone())),
            Arc::new(Edit(rewriter.clone())),
            Arc::new(Glob),
            Arc::new(Grep),
            Arc::new(List),
            Arc::new(Read { seen, shelf: shelf.clone() }),
            Arc::new(ResourceView(shelf)),
            Arc::new(UpdatePlan),
            Arc::new(Write(rewriter)),
        ];
        Self { background: Some(background), ..Self::new(tools) }
    }

    /// The same tools, and those for Skills among them; only where there are any.
    #[must_use]
    pub fn with_skills(self, skills: &Skills) -> Self {
        let tools = self.entries.iter().map(|entry| entry.tool.clone());
        let list: Arc<dyn AnyTool> = Arc::new(SkillsList(skills.clone()));
        let view: Arc<dyn AnyTool> = Arc::new(SkillView(skills.clone()));
        self.rebuilt(tools.chain([list, view]))
    }

    /// Waits until nothing is left of what calls started and an interrupt stops.
    pub async fn settle(&self) {
        let resting = async {
            if let Some(rest) = &self.rest {
                rest().await;
            }
        };
        let settling = async {
            if let Some(background) = &self.background {
                background.settle().await;
            }
        };
        tokio::join!(resting, settling);
    }

    /// The same tools without those that a role may not use.
    #[must_use]
    pub fn of_role(self, role: &Role) -> Self {
        if self.specs.iter().all(|spec| role.may_use(&spec.name)) {
            return self;
        }
        let is_kept = |entry: &&Arc<Entry>| role.may_use(&entry.tool.spec().name);
        let tools = self.entries.iter().filter(is_kept).map(|entry| entry.tool.clone());
        self.rebuilt(tools)
    }

    /// These tools in place of those there are.
    fn rebuilt(&self, tools: impl IntoIterator<Item = Arc<dyn AnyTool>>) -> Self {
        let (background, rest) = (self.background.clone(), self.rest.clone());
        Self { background, rest, ..Self::new(tools) }
    }

    /// What the model is told, in a stable order.
    pub fn specs(&self) -> Arc<[ToolSpec]> {
        self.specs.clone()
    }

    /// The tool of that name.
    pub fn find(&self, name: &str) -> Result<Arc<dyn AnyTool>, ToolError> {
        self.position(name).map(|index| self.entries[index].tool.clone())
    }

    /// Checks arguments against the tool's schema and tells everything that is wrong with them.
    pub fn validate(&self, name: &str, args: &Value) -> Result<(), ToolError> {
        let index = self.position(name)?;
        let schema = &self.specs[index].parameters;
        let compile = || {
            let compiled = jsonschema::validator_for(&schema.value());
            compiled.inspect_err(|error| tracing::warn!(name, %error, "bad tool schema")).ok()
        };
        // Without a schema that compiles, whoever decodes the arguments checks them.
        let Some(validator) = self.entries[index].validator.get_or_init(compile) else {
            return Ok(());
        };
        let violations: Vec<(String, String)> = validator
            .iter_errors(args)
            .take(TOLD_VIOLATIONS)
            .map(|error| (error.instance_path().to_string(), error.to_string()))
            .collect();
        let Some((path, message)) = violations.first() else { return Ok(()) };
        let place = if path.is_empty() { String::new() } else { format!(" at {path}") };
        let all: Vec<_> = violations
            .iter()
            .map(|(path, message)| json!({"path": path, "message": message}))
            .collect();
        Err(ToolError::invalid(format!("{name} cannot take these arguments{place}: {message}"))
            .details(json!({"path": path, "violations": all, "expected": schema.value()}))
            .next("repeat the call with arguments that match the schema"))
    }

    fn position(&self, name: &str) -> Result<usize, ToolError> {
        let (own, guests) = self.specs.split_at(self.own);
        let search =
            |specs: &[ToolSpec]| specs.binary_search_by(|spec| spec.name.as_str().cmp(name));
        let found = search(own).or_else(|_| search(guests).map(|place| self.own + place));
        found.map_err(|_| {
            let names: Vec<&str> = self.specs.iter().map(|spec| spec.name.as_str()).collect();
            let nearest = names
                .iter()
                .map(|known| (strsim::levenshtein(known, name), known))
                .min()
                .filter(|(distance, _)| *distance <= 2);
            let error = ToolError::new(Kind::UnknownTool, format!("there is no tool `{name}`"))
                .details(json!({ "tools": names }));
            match nearest {
                Some((_, known)) => error.next(format!("call `{known}`")),
                None => error.next(format!("use one of: {}", names.join(", "))),
            }
        })
    }
}

impl std::fmt::Debug for Toolbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.specs.iter().map(|spec| &spec.name)).finish()
    }
}

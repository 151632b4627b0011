//! The Toolbox: the tools of one Session, their definitions for the model, and the validation of
//! arguments.

use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use jsonschema::Validator;
use serde_json::{Value, json};

use crate::base::error::Kind;
use crate::base::tool_error::ToolError;
use crate::host::process::Commands;
use crate::model::skill::Skills;
use crate::model::tool_spec::ToolSpec;
use crate::record::history::History;
use crate::record::resource::Shelf;
use crate::settings::config::Config;
use crate::settings::role::Role;
use crate::tools::files::{ApplyPatch, Edit, Read, ResourceView, Rewriter, Seen, Write};
use crate::tools::plan::UpdatePlan;
use crate::tools::search::{Glob, Grep, List};
use crate::tools::shell::{Background, Bash, BashInput, BashOutput, BashStop};
use crate::tools::skills::{SkillView, SkillsList};
use crate::tools::tool::AnyTool;

/// How many schema violations are reported at once.
const TOLD_VIOLATIONS: usize = 10;

/// The tools of one Session: Pixir's own sorted by name, then external ones sorted by name; cheap to clone.
#[derive(Clone)]
pub struct Toolbox {
    entries: Arc<[Arc<Entry>]>,
    specs: Arc<[ToolSpec]>,
    /// How many of the entries are Pixir's own.
    own: usize,
    /// The background commands, if there are tools for commands.
    background: Option<Background>,
    /// Further cleanup after an interrupt.
    rest: Option<Rest>,
}

/// Ends work that a tool started and left running, and waits until it has ended.
pub type Rest = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

struct Entry {
    tool: Arc<dyn AnyTool>,
    /// Compiled on first use, because most runs call few tools.
    validator: OnceLock<Option<Validator>>,
}

impl Toolbox {
    /// A toolbox of these tools; of two with the same name the later is kept.
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

    /// The same tools, with external ones after them, so that the prefix of the prompt that a Provider has
    /// cached stays the same.
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

    /// The same tools with more of Pixir's own, whose work is ended by `rest`.
    #[must_use]
    pub fn and(self, more: Vec<Arc<dyn AnyTool>>, rest: Rest) -> Self {
        let own = self.entries.iter().take(self.own).map(|entry| entry.tool.clone());
        Self { background: self.background, rest: Some(rest), ..Self::new(own.chain(more)) }
    }

    /// The built-in tools for one Session with this History.
    pub fn built_in(config: &Config, commands: Commands, history: &History, shelf: Shelf) -> Self {
        let background = Background::new(config.bash.max_background, history);
        Self::sharing(config, commands, history, shelf, background)
    }

    /// The built-in tools around existing background commands.
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

    /// The same tools with those for Skills, for a Session that has Skills.
    #[must_use]
    pub fn with_skills(self, skills: &Skills) -> Self {
        let tools = self.entries.iter().map(|entry| entry.tool.clone());
        let list: Arc<dyn AnyTool> = Arc::new(SkillsList(skills.clone()));
        let view: Arc<dyn AnyTool> = Arc::new(SkillView(skills.clone()));
        self.rebuilt(tools.chain([list, view]))
    }

    /// Waits until all work that an interrupt stops has ended.
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

    /// The tools that a role may use.
    #[must_use]
    pub fn of_role(self, role: &Role) -> Self {
        if self.specs.iter().all(|spec| role.may_use(&spec.name)) {
            return self;
        }
        let is_kept = |entry: &&Arc<Entry>| role.may_use(&entry.tool.spec().name);
        let tools = self.entries.iter().filter(is_kept).map(|entry| entry.tool.clone());
        self.rebuilt(tools)
    }

    /// A toolbox with other tools and the same background commands and cleanup.
    fn rebuilt(&self, tools: impl IntoIterator<Item = Arc<dyn AnyTool>>) -> Self {
        let (background, rest) = (self.background.clone(), self.rest.clone());
        Self { background, rest, ..Self::new(tools) }
    }

    /// The tool definitions for the model, in a stable order.
    pub fn specs(&self) -> Arc<[ToolSpec]> {
        self.specs.clone()
    }

    /// The tool with this name; the error suggests similar names.
    pub fn find(&self, name: &str) -> Result<Arc<dyn AnyTool>, ToolError> {
        self.position(name).map(|index| self.entries[index].tool.clone())
    }

    /// Validates arguments against the tool's schema; the error lists all violations.
    pub fn validate(&self, name: &str, args: &Value) -> Result<(), ToolError> {
        let index = self.position(name)?;
        let schema = &self.specs[index].parameters;
        let compile = || {
            let compiled = jsonschema::validator_for(&schema.value());
            compiled.inspect_err(|error| tracing::warn!(name, %error, "bad tool schema")).ok()
        };
        // If the schema does not compile, only the decoding checks the arguments.
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

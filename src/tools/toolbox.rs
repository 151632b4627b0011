//! The Toolbox: the tools of one Session, their definitions for the model, and the validation of
//! arguments.

use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use jsonschema::Validator;
use serde_json::{Value, json};

use crate::base::error::Kind;
use crate::base::tool_error::ToolError;
use crate::host::process::CommandRunner;
use crate::model::skill::Skills;
use crate::model::tool_spec::ToolSpec;
use crate::record::history::History;
use crate::record::resource::Resources;
use crate::settings::config::Config;
use crate::settings::role::Role;
use crate::tools::files::{
    ApplyPatchTool, EditTool, FileRewriter, ReadTool, ReadTracker, ResourceViewTool, WriteTool,
};
use crate::tools::plan::UpdatePlanTool;
use crate::tools::search::{GlobTool, GrepTool, ListTool};
use crate::tools::shell::{
    BackgroundCommands, BashInputTool, BashOutputTool, BashStopTool, BashTool,
};
use crate::tools::skills::{SkillViewTool, SkillsListTool};
use crate::tools::tool::AnyTool;

/// How many schema violations are reported at once.
const MAX_VIOLATIONS: usize = 10;

/// The tools of one Session: Pixir's own sorted by name, then external ones sorted by name; cheap to clone.
#[derive(Clone)]
pub struct Toolbox {
    entries: Arc<[Arc<ToolboxEntry>]>,
    specs: Arc<[ToolSpec]>,
    /// How many of the entries are Pixir's own.
    own_count: usize,
    /// The background commands, if there are tools for commands.
    background: Option<BackgroundCommands>,
    /// Further cleanup after an interrupt.
    cleanup: Option<Cleanup>,
}

/// Ends work that a tool started and left running, and waits until it has ended.
pub type Cleanup = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

struct ToolboxEntry {
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
        let entry = |tool| Arc::new(ToolboxEntry { tool, validator: OnceLock::new() });
        let own_count = specs.len();
        let entries = tools.into_iter().map(entry).collect();
        Self { entries, specs: specs.into(), own_count, background: None, cleanup: None }
    }

    /// A toolbox with external tools after these, so that the prefix of the prompt that a Provider has
    /// cached stays the same.
    #[must_use]
    pub fn with_external_tools(&self, external: Vec<Arc<dyn AnyTool>>) -> Self {
        if external.is_empty() {
            return self.clone();
        }
        let external = Self::new(external);
        let entries = self.entries.iter().chain(external.entries.iter()).cloned();
        let specs = self.specs.iter().chain(external.specs.iter()).cloned();
        let (background, cleanup) = (self.background.clone(), self.cleanup.clone());
        Self {
            entries: entries.collect(),
            specs: specs.collect(),
            own_count: self.own_count,
            background,
            cleanup,
        }
    }

    /// A toolbox with more of Pixir's own tools, whose work is ended by `cleanup`.
    #[must_use]
    pub fn with_tools(self, more: Vec<Arc<dyn AnyTool>>, cleanup: Cleanup) -> Self {
        let own = self.entries.iter().take(self.own_count).map(|entry| entry.tool.clone());
        Self { background: self.background, cleanup: Some(cleanup), ..Self::new(own.chain(more)) }
    }

    /// The built-in tools for one Session with this History.
    pub fn built_in(
        config: &Config,
        commands: CommandRunner,
        history: &History,
        resources: Resources,
    ) -> Self {
        let background = BackgroundCommands::new(config.bash.max_background, history);
        Self::with_background(config, commands, history, resources, background)
    }

    /// The built-in tools around existing background commands.
    pub fn with_background(
        config: &Config,
        commands: CommandRunner,
        history: &History,
        resources: Resources,
        background: BackgroundCommands,
    ) -> Self {
        let read_tracker = ReadTracker::from_history(history);
        let rewriter = FileRewriter::new(read_tracker.clone());
        let patience = config.bash.max_timeout;
        let tools: [Arc<dyn AnyTool>; 13] = [
            Arc::new(ApplyPatchTool(rewriter.clone())),
            Arc::new(BashTool::new(commands, config.bash.clone(), background.clone())),
            Arc::new(BashInputTool(background.clone())),
            Arc::new(BashOutputTool { background: background.clone(), max_wait: patience }),
            Arc::new(BashStopTool(background.clone())),
            Arc::new(EditTool(rewriter.clone())),
            Arc::new(GlobTool),
            Arc::new(GrepTool),
            Arc::new(ListTool),
            Arc::new(ReadTool { read_tracker, resources: resources.clone() }),
            Arc::new(ResourceViewTool(resources)),
            Arc::new(UpdatePlanTool),
            Arc::new(WriteTool(rewriter)),
        ];
        Self { background: Some(background), ..Self::new(tools) }
    }

    /// A toolbox with the tools for Skills, for a Session that has Skills.
    #[must_use]
    pub fn with_skills(self, skills: &Skills) -> Self {
        let tools = self.entries.iter().map(|entry| entry.tool.clone());
        let list: Arc<dyn AnyTool> = Arc::new(SkillsListTool(skills.clone()));
        let view: Arc<dyn AnyTool> = Arc::new(SkillViewTool(skills.clone()));
        self.rebuild(tools.chain([list, view]))
    }

    /// Waits until all work that an interrupt stops has ended.
    pub async fn wait_cleanup(&self) {
        let cleanup = async {
            if let Some(cleanup) = &self.cleanup {
                cleanup().await;
            }
        };
        let background = async {
            if let Some(background) = &self.background {
                background.wait_stopping().await;
            }
        };
        tokio::join!(cleanup, background);
    }

    /// A toolbox of the tools that a role may use.
    #[must_use]
    pub fn for_role(self, role: &Role) -> Self {
        if self.specs.iter().all(|spec| role.may_use(&spec.name)) {
            return self;
        }
        let is_kept = |entry: &&Arc<ToolboxEntry>| role.may_use(&entry.tool.spec().name);
        let tools = self.entries.iter().filter(is_kept).map(|entry| entry.tool.clone());
        self.rebuild(tools)
    }

    /// A toolbox with other tools and the same background commands and cleanup.
    fn rebuild(&self, tools: impl IntoIterator<Item = Arc<dyn AnyTool>>) -> Self {
        let (background, cleanup) = (self.background.clone(), self.cleanup.clone());
        Self { background, cleanup, ..Self::new(tools) }
    }

    /// The tool definitions for the model, in a stable order.
    pub fn specs(&self) -> Arc<[ToolSpec]> {
        self.specs.clone()
    }

    /// The tool with this name; the error suggests similar names.
    pub fn find_tool(&self, name: &str) -> Result<Arc<dyn AnyTool>, ToolError> {
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
            .take(MAX_VIOLATIONS)
            .map(|error| (error.instance_path().to_string(), error.to_string()))
            .collect();
        let Some((path, message)) = violations.first() else { return Ok(()) };
        let place = if path.is_empty() { String::new() } else { format!(" at {path}") };
        let all: Vec<_> = violations
            .iter()
            .map(|(path, message)| json!({"path": path, "message": message}))
            .collect();
        Err(ToolError::invalid_args(format!(
            "{name} cannot take these arguments{place}: {message}"
        ))
        .with_details(json!({"path": path, "violations": all, "expected": schema.value()}))
        .with_next_action("repeat the call with arguments that match the schema"))
    }

    fn position(&self, name: &str) -> Result<usize, ToolError> {
        let (own, external) = self.specs.split_at(self.own_count);
        let search =
            |specs: &[ToolSpec]| specs.binary_search_by(|spec| spec.name.as_str().cmp(name));
        let found = search(own).or_else(|_| search(external).map(|place| self.own_count + place));
        found.map_err(|_| {
            let names: Vec<&str> = self.specs.iter().map(|spec| spec.name.as_str()).collect();
            let nearest = names
                .iter()
                .map(|known| (strsim::levenshtein(known, name), known))
                .min()
                .filter(|(distance, _)| *distance <= 2);
            let error = ToolError::new(Kind::UnknownTool, format!("there is no tool `{name}`"))
                .with_details(json!({ "tools": names }));
            match nearest {
                Some((_, known)) => error.with_next_action(format!("call `{known}`")),
                None => error.with_next_action(format!("use one of: {}", names.join(", "))),
            }
        })
    }
}

impl std::fmt::Debug for Toolbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.specs.iter().map(|spec| &spec.name)).finish()
    }
}

//! Limits: usage of a Session with its children, repeated calls, length of answers, and length of
//! input.

mod cut_answers;
mod family_usage;
mod fan_out;
mod loops;
mod waiting;
mod window;

use pixir::scripted::ModelScript;
use serde_json::{Value, json};

use crate::support::BinaryEnv;

/// A test environment whose model costs ten dollars per million tokens of any kind.
async fn priced(script: ModelScript, more: &Value) -> BinaryEnv {
    let env = BinaryEnv::new(BinaryEnv::new_mark(), script).await;
    let prices = json!({"gpt-5.5": {"input": 10, "output": 10}});
    let mut settings = json!({"durability": "none", "prices": prices});
    for (name, value) in more.as_object().unwrap() {
        settings[name] = value.clone();
    }
    env.configure(&settings);
    env
}

fn envelope(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| panic!("{text}"))
}

/// Usage of all Sessions of the Workspace, as reported by `pixir usage`.
fn usage(env: &BinaryEnv) -> Value {
    envelope(&env.run(&["usage", "--json"]).expect_code(0).stdout)["output"]["total"].clone()
}

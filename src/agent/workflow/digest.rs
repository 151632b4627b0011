//! SHA-256 digests of JSON values, independent of the order of keys.

use serde::Serialize;

use crate::model::skill::sha256;
use crate::tools::permission::sorted;

/// The SHA-256 of a value, serialised with sorted keys.
pub fn digest(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    sha256(sorted(&value).to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_order_of_keys_does_not_matter_and_that_of_values_does() {
        let one: Value = serde_json::from_str(r#"{"a": [1, {"x": 1, "y": 2}], "b": 1}"#).unwrap();
        let other: Value = serde_json::from_str(r#"{"b": 1, "a": [1, {"y": 2, "x": 1}]}"#).unwrap();
        assert_eq!(digest(&one), digest(&other));
        assert_ne!(digest(&json!([1, 2])), digest(&json!([2, 1])));
        assert_ne!(digest(&json!("1")), digest(&json!(1)));
    }
}

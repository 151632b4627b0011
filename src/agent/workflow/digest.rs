//! SHA-256 digests of JSON values, independent of the order of keys.

use serde::Serialize;

use crate::model::skill::sha256;
use crate::tools::permission::sort_keys;

/// The SHA-256 of a value, serialised with sorted keys.
pub fn canonical_digest(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    sha256(sort_keys(&value).to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_order_of_keys_does_not_matter_and_that_of_values_does() {
        let one: Value = serde_json::from_str(r#"{"a": [1, {"x": 1, "y": 2}], "b": 1}"#).unwrap();
        let other: Value = serde_json::from_str(r#"{"b": 1, "a": [1, {"y": 2, "x": 1}]}"#).unwrap();
        assert_eq!(canonical_digest(&one), canonical_digest(&other));
        assert_ne!(canonical_digest(&json!([1, 2])), canonical_digest(&json!([2, 1])));
        assert_ne!(canonical_digest(&json!("1")), canonical_digest(&json!(1)));
    }
}

//! JSON as Spark's REST API writes it: absent fields are left out, times are text in GMT.

use jiff::Timestamp;
use serde_json::{Map, Value};

/// A time in milliseconds since 1970, as `2026-11-23T02:50:47.265GMT`.
#[must_use]
pub fn date(milliseconds: i64) -> Value {
    Timestamp::from_millisecond(milliseconds).map_or_else(
        |_| Value::from(milliseconds),
        |time| Value::from(time.strftime("%Y-%m-%dT%H:%M:%S%.3fGMT").to_string()),
    )
}

/// A time that may be absent.
#[must_use]
pub fn date_or_none(milliseconds: Option<i64>) -> Value {
    milliseconds.map_or(Value::Null, date)
}

/// An object without its absent fields.
#[must_use]
pub fn present(mut value: Value) -> Value {
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, value| !value.is_null());
    }
    value
}

/// An object of pairs, in their order.
pub fn object<K: Into<String>>(pairs: impl IntoIterator<Item = (K, Value)>) -> Value {
    let pairs = pairs.into_iter().map(|(key, value)| (key.into(), value));
    Value::Object(pairs.collect::<Map<_, _>>())
}

//! JSON as Spark's REST API writes it: absent fields are left out, times are text in GMT.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use serde_json::{Map, Value};

/// A time in milliseconds since 1970, as `2026-11-23T02:50:47.265GMT`.
#[must_use]
pub fn date(milliseconds: i64) -> Value {
    Timestamp::from_millisecond(milliseconds).map_or_else(
        |_| Value::from(milliseconds),
        |time| Value::from(time.strftime("%Y-%m-%dT%H:%M:%S%.3fGMT").to_string()),
    )
}

/// A date as Spark's API writes and takes it: `2026-11-23T02:50:47.265GMT` or `2026-11-23`, in milliseconds since 1970.
#[must_use]
pub fn milliseconds(text: &str) -> Option<i64> {
    let text = text.strip_suffix("GMT").unwrap_or(text);
    let midnight = |date: Date| date.to_datetime(Time::midnight());
    let time = text.parse::<DateTime>();
    let time = time.or_else(|_| text.parse::<Date>().map(midnight)).ok()?;
    let zoned = TimeZone::UTC.to_timestamp(time).ok()?;
    Some(zoned.as_millisecond())
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

//! Some fields of a row as JSON values, without the cost of its other fields.

use serde::de::value::Error;
use serde::ser::{Error as _, Impossible, SerializeMap, SerializeStruct};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// The fields with these names; `None` for those that the row does not have. A row that is no object has none.
pub fn pick<Row: Serialize + ?Sized>(row: &Row, names: &[&str]) -> Vec<Option<Value>> {
    let mut found = vec![None; names.len()];
    let fields = Fields {
        names,
        found: &mut found,
        next: None,
    };
    match row.serialize(Picker(fields)) {
        Ok(()) => found,
        Err(_) => vec![None; names.len()],
    }
}

/// Takes an object and keeps some of its fields.
struct Picker<'a>(Fields<'a>);

/// The fields of an object, one after the other.
struct Fields<'a> {
    names: &'a [&'a str],
    found: &'a mut [Option<Value>],
    /// Place of the field whose value comes next, if it is one of the names.
    next: Option<usize>,
}

impl Fields<'_> {
    fn place(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|wanted| *wanted == name)
    }

    fn keep<T: Serialize + ?Sized>(&mut self, at: Option<usize>, value: &T) -> Result<(), Error> {
        let Some(at) = at else {
            return Ok(());
        };
        let value = serde_json::to_value(value).map_err(Error::custom)?;
        // The same field may be named twice.
        for (wanted, found) in self.names.iter().zip(self.found.iter_mut()) {
            if *wanted == self.names[at] {
                *found = Some(value.clone());
            }
        }
        Ok(())
    }
}

impl SerializeStruct for Fields<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        self.keep(self.place(name), value)
    }

    fn end(self) -> Result<(), Error> {
        Ok(())
    }
}

impl SerializeMap for Fields<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.next = key.serialize(Key(self))?;
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let at = self.next.take();
        self.keep(at, value)
    }

    fn end(self) -> Result<(), Error> {
        Ok(())
    }
}

/// A value that is not of the kind that is expected here.
fn other<T>() -> Result<T, Error> {
    Err(Error::custom("no object"))
}

/// Methods of a serializer for everything that it does not expect.
macro_rules! nothing_else {
    ($result:ty) => {
        fn serialize_bool(self, _: bool) -> Result<$result, Error> {
            other()
        }
        fn serialize_i8(self, _: i8) -> Result<$result, Error> {
            other()
        }
        fn serialize_i16(self, _: i16) -> Result<$result, Error> {
            other()
        }
        fn serialize_i32(self, _: i32) -> Result<$result, Error> {
            other()
        }
        fn serialize_i64(self, _: i64) -> Result<$result, Error> {
            other()
        }
        fn serialize_u8(self, _: u8) -> Result<$result, Error> {
            other()
        }
        fn serialize_u16(self, _: u16) -> Result<$result, Error> {
            other()
        }
        fn serialize_u32(self, _: u32) -> Result<$result, Error> {
            other()
        }
        fn serialize_u64(self, _: u64) -> Result<$result, Error> {
            other()
        }
        fn serialize_f32(self, _: f32) -> Result<$result, Error> {
            other()
        }
        fn serialize_f64(self, _: f64) -> Result<$result, Error> {
            other()
        }
        fn serialize_char(self, _: char) -> Result<$result, Error> {
            other()
        }
        fn serialize_bytes(self, _: &[u8]) -> Result<$result, Error> {
            other()
        }
        fn serialize_none(self) -> Result<$result, Error> {
            other()
        }
        fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<$result, Error> {
            value.serialize(self)
        }
        fn serialize_unit(self) -> Result<$result, Error> {
            other()
        }
        fn serialize_unit_struct(self, _: &'static str) -> Result<$result, Error> {
            other()
        }
        fn serialize_newtype_struct<T: Serialize + ?Sized>(
            self,
            _: &'static str,
            value: &T,
        ) -> Result<$result, Error> {
            value.serialize(self)
        }
        fn serialize_newtype_variant<T: Serialize + ?Sized>(
            self,
            _: &'static str,
            _: u32,
            _: &'static str,
            _: &T,
        ) -> Result<$result, Error> {
            other()
        }
        fn serialize_seq(self, _: Option<usize>) -> Result<Self::SerializeSeq, Error> {
            other()
        }
        fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, Error> {
            other()
        }
        fn serialize_tuple_struct(
            self,
            _: &'static str,
            _: usize,
        ) -> Result<Self::SerializeTupleStruct, Error> {
            other()
        }
        fn serialize_tuple_variant(
            self,
            _: &'static str,
            _: u32,
            _: &'static str,
            _: usize,
        ) -> Result<Self::SerializeTupleVariant, Error> {
            other()
        }
        fn serialize_struct_variant(
            self,
            _: &'static str,
            _: u32,
            _: &'static str,
            _: usize,
        ) -> Result<Self::SerializeStructVariant, Error> {
            other()
        }
    };
}

impl<'a> Serializer for Picker<'a> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Impossible<(), Error>;
    type SerializeTuple = Impossible<(), Error>;
    type SerializeTupleStruct = Impossible<(), Error>;
    type SerializeTupleVariant = Impossible<(), Error>;
    type SerializeMap = Fields<'a>;
    type SerializeStruct = Fields<'a>;
    type SerializeStructVariant = Impossible<(), Error>;

    nothing_else!(());

    fn serialize_str(self, _: &str) -> Result<(), Error> {
        other()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Result<(), Error> {
        other()
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Fields<'a>, Error> {
        Ok(self.0)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Fields<'a>, Error> {
        Ok(self.0)
    }
}

/// Takes the name of a field and finds its place.
struct Key<'a, 'b>(&'a Fields<'b>);

impl Serializer for Key<'_, '_> {
    type Ok = Option<usize>;
    type Error = Error;
    type SerializeSeq = Impossible<Option<usize>, Error>;
    type SerializeTuple = Impossible<Option<usize>, Error>;
    type SerializeTupleStruct = Impossible<Option<usize>, Error>;
    type SerializeTupleVariant = Impossible<Option<usize>, Error>;
    type SerializeMap = Impossible<Option<usize>, Error>;
    type SerializeStruct = Impossible<Option<usize>, Error>;
    type SerializeStructVariant = Impossible<Option<usize>, Error>;

    nothing_else!(Option<usize>);

    fn serialize_str(self, name: &str) -> Result<Option<usize>, Error> {
        Ok(self.0.place(name))
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
    ) -> Result<Option<usize>, Error> {
        Ok(self.0.place(name))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, Error> {
        other()
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeStruct, Error> {
        other()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::rows::{JobRow, RddRow};
    use crate::state::FaultFigures;

    #[test]
    fn picked_fields_are_those_of_the_whole_row() {
        let faults = FaultFigures {
            page_faults: Some(5),
            ..FaultFigures::default()
        };
        let rdd = RddRow {
            name: Some("links".to_owned()),
            faults,
            ..RddRow::default()
        };
        let job = JobRow {
            faults,
            ..JobRow::default()
        };
        let rows = [
            serde_json::to_value(&rdd).expect("JSON"),
            serde_json::to_value(&job).expect("JSON"),
            json!({"pid": [1, 2], "name": {"a": null}}),
            json!({}),
        ];
        let names = [
            "page_faults",
            "pid",
            "name",
            "nowhere",
            "page_faults",
            "cpu_ns",
        ];
        for (at, row) in rows.iter().enumerate() {
            let expected: Vec<Option<Value>> =
                names.iter().map(|name| row.get(name).cloned()).collect();
            // Flattened fields come as those of a map.
            let picked = match at {
                0 => pick(&rdd, &names),
                1 => pick(&job, &names),
                _ => pick(row, &names),
            };
            assert_eq!(picked, expected, "{row}");
            assert_eq!(pick(row, &names), expected, "as JSON: {row}");
            assert_eq!(pick(&Some(row), &names), expected);
        }
        assert_eq!(pick(&rdd, &names)[0], Some(json!(5)));
    }

    #[test]
    fn what_is_no_object_has_no_fields() {
        for row in [json!(1), json!("a"), json!([{"a": 1}]), Value::Null] {
            assert_eq!(pick(&row, &["a"]), [None], "{row}");
        }
    }
}

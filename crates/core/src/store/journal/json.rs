//! Reads the JSON of a record, and tells by kind why it cannot.
//!
//! serde says of a name that it does not know, as it says of any nonsense, nothing but words. But a
//! name that only a newer version knows must become `Unsupported`, and nonsense `Corrupt`. So the
//! text becomes a [`Json`] first, which is then read with an error type of our own: that one is
//! told by serde, method by method, what went wrong.

use crate::error::{Error, ErrorKind, Result};
use serde::de::value::{MapAccessDeserializer, MapDeserializer, SeqDeserializer};
use serde::de::{
    Deserialize, DeserializeOwned, Deserializer, Error as DeError, IntoDeserializer, MapAccess,
    SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use std::fmt;

/// Reads a JSON record. *Errors*: `Unsupported` where it has a name that a newer version gave a
/// field or a choice, `Corrupt` for whatever else it cannot be.
pub(crate) fn read_json<T: DeserializeOwned>(payload: &[u8], what: &str) -> Result<T> {
    let json = serde_json::from_slice(payload).map_err(|e| Unreadable::Malformed(e.to_string()));
    json.and_then(|json: Json| T::deserialize(json)).map_err(|error| match error {
        Unreadable::UnknownName(why) => Error::new(
            ErrorKind::Unsupported,
            format!("a {what} record has an {why}; use a newer embedrock"),
        ),
        Unreadable::Malformed(why) => {
            Error::new(ErrorKind::Corrupt, format!("a {what} record cannot be read: {why}"))
        }
    })
}

/// Why a record cannot be read.
#[derive(Debug)]
enum Unreadable {
    /// A name that this version does not know.
    UnknownName(String),
    Malformed(String),
}

impl Unreadable {
    fn unknown(what: &str, name: &str, expected: &[&str]) -> Self {
        Self::UnknownName(format!("unknown {what} `{name}`, expected `{}`", expected.join("`, `")))
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::UnknownName(why) | Self::Malformed(why)) = self;
        f.write_str(why)
    }
}

impl std::error::Error for Unreadable {}

impl DeError for Unreadable {
    fn custom<T: fmt::Display>(why: T) -> Self {
        Self::Malformed(why.to_string())
    }

    fn unknown_variant(name: &str, expected: &'static [&'static str]) -> Self {
        Self::unknown("variant", name, expected)
    }

    fn unknown_field(name: &str, expected: &'static [&'static str]) -> Self {
        Self::unknown("field", name, expected)
    }
}

/// A JSON text. Objects have their members as they came, so that one given twice is still refused.
enum Json {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        from.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> std::result::Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> std::result::Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> std::result::Result<Json, E> {
        Ok(Json::Unsigned(value))
    }

    fn visit_i64<E>(self, value: i64) -> std::result::Result<Json, E> {
        Ok(Json::Signed(value))
    }

    fn visit_f64<E>(self, value: f64) -> std::result::Result<Json, E> {
        Ok(Json::Float(value))
    }

    fn visit_str<E>(self, text: &str) -> std::result::Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> std::result::Result<Json, A::Error> {
        let mut object = Vec::new();
        while let Some(member) = members.next_entry()? {
            object.push(member);
        }
        Ok(Json::Object(object))
    }
}

impl IntoDeserializer<'_, Unreadable> for Json {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Json {
    type Error = Unreadable;

    fn deserialize_any<V: Visitor<'de>>(
        self,
        visitor: V,
    ) -> std::result::Result<V::Value, Unreadable> {
        match self {
            Self::Null => visitor.visit_unit(),
            Self::Bool(value) => visitor.visit_bool(value),
            Self::Unsigned(value) => visitor.visit_u64(value),
            Self::Signed(value) => visitor.visit_i64(value),
            Self::Float(value) => visitor.visit_f64(value),
            Self::Text(text) => visitor.visit_string(text),
            Self::List(list) => SeqDeserializer::new(list.into_iter()).deserialize_any(visitor),
            Self::Object(members) => {
                MapDeserializer::new(members.into_iter()).deserialize_any(visitor)
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(
        self,
        visitor: V,
    ) -> std::result::Result<V::Value, Unreadable> {
        match self {
            Self::Null => visitor.visit_none(),
            some => visitor.visit_some(some),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> std::result::Result<V::Value, Unreadable> {
        visitor.visit_newtype_struct(self)
    }

    /// A variant is its name, or an object whose one member has the name and the content.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> std::result::Result<V::Value, Unreadable> {
        match self {
            Self::Text(name) => visitor.visit_enum(name.into_deserializer()),
            Self::Object(members) if members.len() == 1 => {
                let members = MapDeserializer::new(members.into_iter());
                visitor.visit_enum(MapAccessDeserializer::new(members))
            }
            _ => Err(Unreadable::custom("a choice is neither a name nor an object with one")),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::Initializer;
    use crate::io::DeviceCurve;
    use crate::store::journal::TableCounters;

    fn kind<T: DeserializeOwned>(text: &str) -> Option<ErrorKind> {
        read_json::<T>(text.as_bytes(), "test").err().map(|error| error.kind())
    }

    #[test]
    fn only_names_that_are_not_known_are_unsupported() {
        let unsupported = Some(ErrorKind::Unsupported);
        let corrupt = Some(ErrorKind::Corrupt);
        assert_eq!(kind::<Initializer>("{\"constant\":0.5}"), None);
        assert_eq!(kind::<Initializer>("{\"xavier\":0.5}"), unsupported);
        assert_eq!(kind::<Initializer>("\"xavier\""), unsupported);
        // The words of the first are in the second, which has no unknown name.
        assert_eq!(kind::<Initializer>("unknown variant `xavier`"), corrupt);
        assert_eq!(kind::<Initializer>("{\"constant\":\"unknown variant\"}"), corrupt);
        for text in ["{}", "null", "7", "[]", "{\"constant\":0.5,\"xavier\":1}"] {
            assert_eq!(kind::<Initializer>(text), corrupt, "{text}");
        }
        assert_eq!(kind::<TableCounters>("{\"id\":1,\"rows\":2,\"updates\":3}"), None);
        for text in [
            "{\"id\":1,\"rows\":2}",
            "{\"id\":1,\"rows\":2,\"updates\":-3}",
            "{\"id\":65536,\"rows\":2,\"updates\":3}",
            "{\"id\":1,\"id\":1,\"rows\":2,\"updates\":3}",
            "{\"id\":1,\"rows\":2,\"updates\":3}}",
        ] {
            assert_eq!(kind::<TableCounters>(text), corrupt, "{text}");
        }
    }

    #[test]
    fn numbers_are_those_that_serde_json_reads() {
        for bits in (0..2000u64).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 2) {
            let rate = f64::from_bits(bits);
            let text = format!(
                "{{\"depth\":{},\"points\":[{{\"bytes\":512,\"requests_per_s\":{rate:e}}}]}}",
                bits % 999
            );
            let read: DeviceCurve = read_json(text.as_bytes(), "test").unwrap();
            assert_eq!(read, serde_json::from_str::<DeviceCurve>(&text).unwrap(), "{text}");
        }
    }
}

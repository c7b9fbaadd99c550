//! Rows of a JSON-lines file: one object per line, with the column names as keys.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::column::{Column, List, keep_apart};
use crate::log::error::BadValue;

/// Keys of an object; each is compared with all before it.
const MOST_KEYS: usize = 1000;

/// A JSON object as its keys and the text of its values, in order.
pub struct Object<'a>(pub Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut entries: Vec<(String, &'de RawValue)> = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, &'de RawValue>()? {
                    if entries.len() == MOST_KEYS {
                        return Err(serde::de::Error::custom(format!("more than {MOST_KEYS} keys")));
                    }
                    if entries.iter().any(|(k, _)| *k == key) {
                        return Err(serde::de::Error::custom(format!("the key `{key}` stands twice")));
                    }
                    entries.push((key, value));
                }
                Ok(Object(entries))
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

/// The elements of a JSON array as text.
struct Array<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Array<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements;
        impl<'de> Visitor<'de> for Elements {
            type Value = Array<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Self::Value, S::Error> {
                let mut elements = Vec::new();
                while let Some(element) = seq.next_element::<&'de RawValue>()? {
                    elements.push(element);
                }
                Ok(Array(elements))
            }
        }
        deserializer.deserialize_seq(Elements)
    }
}

/// Extracts the wanted cells of a JSON object.
///
/// # Errors
/// A text that is no JSON object, a value that does not fit its column, or a required key that is missing.
pub fn row(text: &[u8], columns: &'static [Column], cells: &mut csv::ByteRecord) -> Result<(), BadValue> {
    let bad = |column, why: String| BadValue::new(column, &String::from_utf8_lossy(text), "bad_json", why);
    let Object(entries) = serde_json::from_slice(text).map_err(|e| bad("", format!("not a JSON object: {e}")))?;
    let mut cell_text = Vec::new();
    for column in columns {
        cell_text.clear();
        match entries.iter().find(|(key, _)| key == column.name) {
            Some((_, value)) => cell(column, value, &mut cell_text).map_err(|why| bad(column.name, why))?,
            None if column.required => return Err(bad(column.name, format!("the object has no `{}`", column.name))),
            None => {}
        }
        cells.push_field(&cell_text);
    }
    Ok(())
}

/// Appends a value to `text` as in a TSV cell: nothing for null, strings without quotes, numbers as they are written, lists
/// joined.
///
/// # Errors
/// A nested value in a column that has none.
fn cell(column: &Column, value: &RawValue, text: &mut Vec<u8>) -> Result<(), String> {
    let json = value.get();
    match (json.as_bytes().first(), column.list) {
        (Some(b'['), Some(list)) => array(list, json, text),
        (Some(b'[' | b'{'), _) => Err(format!("`{}` has to be a plain value", column.name)),
        _ => plain(json, text),
    }
}

fn plain(json: &str, text: &mut Vec<u8>) -> Result<(), String> {
    match json {
        "null" => {}
        "true" => text.push(b'1'),
        "false" => text.push(b'0'),
        _ if json.starts_with('"') => {
            let value: String = serde_json::from_str(json).map_err(|e| e.to_string())?;
            text.extend_from_slice(value.as_bytes());
        }
        _ if json.starts_with(['[', '{']) => return Err(format!("{json} has to be a plain value")),
        number => text.extend_from_slice(number.as_bytes()),
    }
    Ok(())
}

fn array(list: List, json: &str, text: &mut Vec<u8>) -> Result<(), String> {
    let Array(elements) = serde_json::from_str(json).map_err(|e| e.to_string())?;
    for (i, element) in elements.iter().enumerate() {
        if i > 0 {
            text.push(list.separator);
        }
        if list.fields.is_empty() {
            let from = text.len();
            plain(element.get(), text)?;
            keep_apart(&mut text[from..]);
            continue;
        }
        let Object(entries) = serde_json::from_str(element.get()).map_err(|e| format!("an entry: {e}"))?;
        for (f, field) in list.fields.iter().enumerate() {
            if f > 0 {
                text.push(b',');
            }
            if let Some((_, value)) = entries.iter().find(|(key, _)| key == field) {
                let from = text.len();
                plain(value.get(), text)?;
                keep_apart(&mut text[from..]);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::track;

    fn text(name: &str, json: &str) -> Result<String, String> {
        let column = track::COLUMNS.iter().find(|c| c.name == name).unwrap();
        let value: &RawValue = serde_json::from_str(json).unwrap();
        let mut text = vec![];
        cell(column, value, &mut text).map(|()| String::from_utf8(text).unwrap())
    }

    #[test]
    fn queues_are_text_or_arrays_of_objects_and_numbers_keep_their_digits() {
        let queue = r#"[{"ad_id":18446744073709551615,"type":"A","ecpm":0.1000000000000000055,"pctr":1e-3,"filter":0},
            {"type":"C","ad_id":7,"boost":2,"ecpm":0,"filter":null,"pctr":0.5,"x":9}]"#;
        let wanted = "18446744073709551615,A,0.1000000000000000055,1e-3,0,;7,C,0,0.5,,2";
        assert_eq!(text("queue", queue).unwrap(), wanted);
        assert_eq!(text("queue", "\"1,A,2,0.5,0\"").unwrap(), "1,A,2,0.5,0");
        assert_eq!(text("queue", "[]").unwrap(), "");
        assert_eq!(text("user_id", "null").unwrap(), "");
        for bad in ["[1]", "[{\"ad_id\":[1]}]", "{}", "[{\"ad_id\":1,\"ad_id\":2}]"] {
            assert!(text("queue", bad).is_err(), "{bad}");
        }
        assert!(text("region", "[1]").is_err());
    }
}

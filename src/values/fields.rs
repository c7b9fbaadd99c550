//! Which ids an impression has: plain ones and crosses of them, each hashed to 64 bits with the field it stands in.

use std::fmt;

use crate::log::Request;
use crate::log::schema::AdType;
use crate::sparse::index::{NO_ID, mix};

/// What a field is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Ad,
    Slot,
    Region,
    User,
    Gender,
    Age,
    Type,
}

const PARTS: [(&str, Part); 7] = [
    ("ad", Part::Ad),
    ("slot", Part::Slot),
    ("region", Part::Region),
    ("user", Part::User),
    ("gender", Part::Gender),
    ("age", Part::Age),
    ("type", Part::Type),
];

/// A list of fields that cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FieldError {
    #[error("configuration key `values.fields`: `{field}` has the unknown part `{part}`; there are {}", PARTS.map(|p| p.0).join(", "))]
    Unknown { field: String, part: String },
    #[error("configuration key `values.fields`: `{0}` stands twice")]
    Repeated(String),
    #[error("configuration key `values.fields` is empty; name at least one, `ad` say")]
    Empty,
    #[error(
        "configuration key `values.fields` names `user`, and {log} has no column `user_id`: leave `user` out, or add the column"
    )]
    NoUser { log: String },
}

/// The fields of a model, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields {
    names: Vec<String>,
    parts: Vec<Vec<Part>>,
}

impl Fields {
    /// Reads names such as `ad` and `ad*region`.
    ///
    /// # Errors
    /// An unknown part, a field that stands twice, no field at all.
    pub fn parse(names: &[String]) -> Result<Self, FieldError> {
        let mut parts: Vec<Vec<Part>> = Vec::new();
        for name in names {
            let found: Result<Vec<Part>, FieldError> = name
                .split('*')
                .map(|part| {
                    let known = PARTS.iter().find(|(known, _)| *known == part.trim());
                    let unknown = || FieldError::Unknown { field: name.clone(), part: part.trim().to_owned() };
                    known.map(|(_, part)| *part).ok_or_else(unknown)
                })
                .collect();
            let found = found?;
            if parts.contains(&found) {
                return Err(FieldError::Repeated(name.clone()));
            }
            parts.push(found);
        }
        if parts.is_empty() {
            return Err(FieldError::Empty);
        }
        Ok(Self { names: names.to_vec(), parts })
    }

    pub fn len(&self) -> usize {
        self.parts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether requests have to say who looks.
    pub fn need_user(&self) -> bool {
        self.parts.iter().flatten().any(|part| *part == Part::User)
    }

    /// Appends the ids of an ad on a request, one for each field. A request without its user has that field at 0.
    pub fn ids(&self, request: &Request, ad_id: u64, ad_type: AdType, out: &mut Vec<u64>) {
        for (number, parts) in (1u64..).zip(&self.parts) {
            let mut hash = mix(number);
            for part in parts {
                let value = match part {
                    Part::Ad => ad_id,
                    Part::Slot => request.slot_id.into(),
                    Part::Region => request.region.into(),
                    Part::User => request.user().map_or(0, |user| user.wrapping_add(1)),
                    Part::Gender => request.gender.into(),
                    Part::Age => request.age.into(),
                    Part::Type => u64::from(ad_type == AdType::Contract),
                };
                hash = mix(hash.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ mix(value));
            }
            out.push(if hash == NO_ID { 0 } else { hash });
        }
    }
}

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_repeated_and_missing_fields_are_named() {
        let parse = |names: &[&str]| Fields::parse(&names.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(parse(&["ad", "ad*region"]).unwrap().len(), 2);
        let message = parse(&["ad*regoin"]).unwrap_err().to_string();
        assert!(message.contains("`regoin`") && message.contains("region"), "{message}");
        assert_eq!(parse(&["ad", "ad"]), Err(FieldError::Repeated("ad".into())));
        assert_eq!(parse(&[]), Err(FieldError::Empty));
        assert!(parse(&["ad*user"]).unwrap().need_user() && !parse(&["ad"]).unwrap().need_user());
    }
}

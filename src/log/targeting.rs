//! Which requests a contract wants: `region:1,3|gender:1|age:2,3|slot:7`, AND across names, OR within.

use std::fmt;

/// Allowed values per attribute; an empty list allows everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Targeting {
    pub region: Vec<u32>,
    pub gender: Vec<u32>,
    pub age: Vec<u32>,
    pub slot: Vec<u32>,
}

impl Targeting {
    /// Parses the text form; empty text targets everything.
    ///
    /// # Errors
    /// Says which part is malformed: an unknown name, a repeated name, or a value that is not a number.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut targeting = Self::default();
        for part in text.split('|').filter(|p| !p.trim().is_empty()) {
            let (name, values) = part.split_once(':').ok_or_else(|| format!("`{part}` is not `name:value,value`"))?;
            let list = match name.trim() {
                "region" => &mut targeting.region,
                "gender" => &mut targeting.gender,
                "age" => &mut targeting.age,
                "slot" => &mut targeting.slot,
                other => {
                    return Err(format!("unknown attribute `{other}`; use region, gender, age or slot"));
                }
            };
            if !list.is_empty() {
                return Err(format!("`{name}` is named twice; join its values with commas"));
            }
            for value in values.split(',') {
                list.push(value.trim().parse().map_err(|_| format!("`{value}` in `{part}` is not a whole number"))?);
            }
        }
        Ok(targeting)
    }

    /// Whether a request with these attributes is wanted.
    pub fn matches(&self, slot: u32, region: u32, gender: u8, age: u8) -> bool {
        let within = |list: &[u32], value: u32| list.is_empty() || list.contains(&value);
        within(&self.slot, slot)
            && within(&self.region, region)
            && within(&self.gender, gender.into())
            && within(&self.age, age.into())
    }
}

impl fmt::Display for Targeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (name, list) in
            [("region", &self.region), ("gender", &self.gender), ("age", &self.age), ("slot", &self.slot)]
        {
            if list.is_empty() {
                continue;
            }
            if !first {
                f.write_str("|")?;
            }
            first = false;
            let values: Vec<String> = list.iter().map(u32::to_string).collect();
            write!(f, "{name}:{}", values.join(","))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips_and_matches_as_and_of_ors() {
        let t = Targeting::parse("region:1,3|gender:1").unwrap();
        assert_eq!(Targeting::parse(&t.to_string()).unwrap(), t);
        assert!(t.matches(9, 3, 1, 0) && t.matches(9, 1, 1, 5));
        assert!(!t.matches(9, 2, 1, 0) && !t.matches(9, 1, 2, 0));
        assert!(Targeting::parse("").unwrap().matches(1, 2, 0, 9));
    }

    #[test]
    fn malformed_targeting_names_the_part() {
        for (text, part) in [("city:3", "city"), ("region:x", "`x`"), ("region", "`region`"), ("age:1|age:2", "age")] {
            assert!(Targeting::parse(text).unwrap_err().contains(part), "{text}");
        }
    }
}

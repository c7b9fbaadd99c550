//! Targeting of contracts: `region:1,3|gender:1|age:2,3|slot:7`, AND across names, OR within.

use std::collections::HashMap;
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
    /// The malformed part: an unknown name, a repeated name, or a value that is not a number.
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

    /// Returns whether a request with these attributes matches.
    pub fn matches(&self, slot: u32, region: u32, gender: u8, age: u8) -> bool {
        let within = |list: &[u32], value: u32| list.is_empty() || list.contains(&value);
        within(&self.slot, slot)
            && within(&self.region, region)
            && within(&self.gender, gender.into())
            && within(&self.age, age.into())
    }
}

/// Index that finds which of many contracts match a request, without testing each of them.
///
/// Contracts are bits. Each attribute has the set of contracts that accept any value and, for every value that some contract names, the set
/// that accepts it. The contracts that match a request are the intersection of the sets of its four values.
#[derive(Debug, Clone, Default)]
pub struct TargetingIndex {
    words: usize,
    attributes: [Allowed; 4],
}

/// Sets of contracts by value of one attribute.
#[derive(Debug, Clone, Default)]
struct Allowed {
    any: Vec<u64>,
    /// Contracts that accept each named value, including those of `any`.
    named: HashMap<u32, Vec<u64>>,
}

impl Allowed {
    fn of<'a>(lists: impl Iterator<Item = &'a [u32]> + Clone, words: usize) -> Self {
        let mut any = vec![0; words];
        for (j, list) in lists.clone().enumerate() {
            if list.is_empty() {
                any[j / 64] |= 1 << (j % 64);
            }
        }
        let mut named = HashMap::<u32, Vec<u64>>::new();
        for (j, list) in lists.enumerate() {
            for &value in list {
                named.entry(value).or_insert_with(|| any.clone())[j / 64] |= 1 << (j % 64);
            }
        }
        Self { any, named }
    }

    fn of_value(&self, value: u32) -> &[u64] {
        self.named.get(&value).unwrap_or(&self.any)
    }
}

impl TargetingIndex {
    /// Builds the index; contracts are numbered in the order of the iterator.
    pub fn new<'a>(contracts: impl ExactSizeIterator<Item = &'a Targeting> + Clone) -> Self {
        let words = contracts.len().div_ceil(64);
        let by = |list: fn(&Targeting) -> &[u32]| Allowed::of(contracts.clone().map(list), words);
        Self { words, attributes: [by(|t| &t.slot), by(|t| &t.region), by(|t| &t.gender), by(|t| &t.age)] }
    }

    /// Returns the numbers of the contracts that match a request with these attributes, ascending.
    pub fn matching(&self, slot: u32, region: u32, gender: u8, age: u8) -> impl Iterator<Item = usize> + '_ {
        let values = [slot, region, gender.into(), age.into()];
        let [a, b, c, d] = std::array::from_fn(|i| self.attributes[i].of_value(values[i]));
        (0..self.words).flat_map(move |w| {
            let mut bits = a[w] & b[w] & c[w] & d[w];
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros() as usize;
                // Clears the lowest bit.
                (bits != 0).then(|| bits &= bits - 1).map(|()| 64 * w + bit)
            })
        })
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

    proptest::proptest! {
        #[test]
        fn the_index_finds_who_matches(
            lists in proptest::collection::vec(proptest::collection::vec(proptest::collection::vec(0u32..5, 0..3), 4), 0..200),
            asked in proptest::collection::vec((0u32..6, 0u32..6, 0u8..6, 0u8..6), 20),
        ) {
            let targeting = |l: &Vec<Vec<u32>>| {
                let [region, gender, age, slot] = std::array::from_fn(|i| l[i].clone());
                Targeting { region, gender, age, slot }
            };
            let all: Vec<Targeting> = lists.iter().map(targeting).collect();
            let index = TargetingIndex::new(all.iter());
            for (slot, region, gender, age) in asked {
                let found: Vec<usize> = index.matching(slot, region, gender, age).collect();
                let want: Vec<usize> = (0..all.len()).filter(|&j| all[j].matches(slot, region, gender, age)).collect();
                proptest::prop_assert_eq!(found, want);
            }
        }
    }

    #[test]
    fn malformed_targeting_names_the_part() {
        for (text, part) in [("city:3", "city"), ("region:x", "`x`"), ("region", "`region`"), ("age:1|age:2", "age")] {
            assert!(Targeting::parse(text).unwrap_err().contains(part), "{text}");
        }
    }
}

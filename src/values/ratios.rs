//! The simplest model: for each ad the ratio of outcome to prediction, shrunk towards 1. It needs no training and is what a value
//! model has to beat.

use std::collections::BTreeMap;
use std::path::Path;

use crate::settings::RowOptimizer;
use crate::sparse::table::DIRECT;
use crate::sparse::{HostTable, TableShape};

use super::Fields;
use super::join::Joined;
use super::model::{self, Meta};
use super::net::NetShape;
use super::report::{self, Points};

/// The fields of such a model.
///
/// # Panics
/// Never: the name is known.
pub fn fields() -> Fields {
    Fields::parse(&["ad".to_owned()]).expect("a known field")
}

/// Writes the ratios of days, joined with [`fields`], as a model into `folder`; returns the number of ads.
///
/// # Errors
/// What the file system says.
pub fn write(folder: &Path, days: &[Joined]) -> anyhow::Result<usize> {
    let (mut points, mut ids) = (Points::default(), BTreeMap::new());
    for joined in days {
        points.extend(Points::of(joined, 1, None));
        ids.extend(joined.places.iter().map(|(ad, _)| *ad).zip(joined.ids.iter().copied()));
    }
    let (charges, clicks) = report::ad_ratios(&points);
    let shape =
        TableShape { dim: DIRECT + 1, optimizer: RowOptimizer::Sgd, max_rows: ids.len(), seed: 0, marks: false };
    let mut table = HostTable::private(shape)?;
    for (ad, id) in &ids {
        let log = |ratios: &BTreeMap<u64, f64>| ratios.get(ad).map_or(0.0, |ratio| ratio.ln() as f32);
        let mut record = vec![0; shape.words()];
        (record[0], record[1]) = (log(&charges).to_bits(), log(&clicks).to_bits());
        anyhow::ensure!(table.write(*id, &record), "no room for ad {ad}");
    }
    let net = NetShape { fields: 1, dim: shape.dim, hidden: 1 };
    let meta = Meta::new(vec!["ad".to_owned()], shape.dim, net.hidden, shape.seed, 1.0);
    model::write(folder, meta, &vec![0.0; net.parameters()], &table, &|| {})?;
    Ok(ids.len())
}

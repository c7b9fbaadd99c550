//! Sets the contracts' demands, so that some compete, a few ask too much, and the sum is as configured.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::audience::Audience;
use super::contract::{Contract, Kind};
use super::random::{normal, normalise};

/// Sets demands that sum to `fill`. The demands of small contracts are included, as long as they leave half of it to the others. Competing
/// contracts ask for a large part of their fair share of the contested supply, over-booked ones for about all that they match.
pub fn set_demands(list: &mut [Contract], audience: &Audience, fill: f64, rng: &mut ChaCha8Rng) {
    let competes = |c: &Contract| matches!(c.kind, Kind::Tight | Kind::OverBooked);
    let small: f64 = list.iter().filter(|c| c.kind == Kind::Small).map(|c| c.demand).sum();
    let fill = (fill - small).max(0.5 * fill);
    let mut fair = vec![0.0; list.len()];
    for cell in &audience.cells {
        let rivals: Vec<usize> = (0..list.len()).filter(|&j| competes(&list[j]) && list[j].matches(cell)).collect();
        for (bin, part) in audience.curve(cell).iter().enumerate() {
            let flies = |j: &&usize| (list[**j].flight.0..list[**j].flight.1).contains(&bin);
            let flying = rivals.iter().filter(flies).count();
            for &j in rivals.iter().filter(flies) {
                fair[j] += cell.share * part / flying as f64;
            }
        }
    }
    let mut easy = Vec::new();
    let mut contested = 0.0;
    for (contract, fair) in list.iter_mut().zip(&fair) {
        contract.demand = match contract.kind {
            Kind::Tight => fair * rng.random_range(0.65..0.95),
            Kind::OverBooked => contract.supply * rng.random_range(0.85..1.1),
            Kind::Easy => {
                easy.push(contract.supply * (0.5 * normal(rng)).exp());
                continue;
            }
            Kind::Small => continue,
        };
        contested += contract.demand;
    }
    // With a low fill the contested demands shrink too, so that the easy ones keep a third of it.
    let limit = if easy.is_empty() { fill } else { fill * 2.0 / 3.0 };
    let scale = if contested > limit || easy.is_empty() { limit / contested } else { 1.0 };
    if !easy.is_empty() {
        normalise(&mut easy);
    }
    let mut shares = easy.into_iter();
    for contract in list {
        contract.demand = match contract.kind {
            Kind::Easy => (fill - contested * scale) * shares.next().unwrap_or(0.0),
            Kind::Tight | Kind::OverBooked => contract.demand * scale,
            Kind::Small => contract.demand,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::contracts::Contracts;
    use crate::synth::settings::WorldSettings;
    use rand::SeedableRng;

    fn draw(settings: &WorldSettings) -> Contracts {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let audience = Audience::draw(settings, &mut rng).unwrap();
        Contracts::draw(settings, &audience, &mut rng)
    }

    #[test]
    fn demands_sum_to_the_fill_and_kinds_differ_in_tightness() {
        for fill in [0.05, 0.45, 0.9] {
            let settings = WorldSettings { fill, ..WorldSettings::default() };
            let contracts = draw(&settings);
            let sum: f64 = contracts.list.iter().map(|c| c.demand).sum();
            assert!((sum - fill).abs() < 1e-9, "{sum}");
        }
        let contracts = draw(&WorldSettings::default());
        let tightness = |kind| {
            let of_kind = contracts.list.iter().filter(|c| c.kind == kind);
            let ratios: Vec<f64> = of_kind.map(|c| c.demand / c.supply).collect();
            (ratios.len(), ratios.iter().sum::<f64>() / ratios.len() as f64)
        };
        let (easy, tight, over) = (tightness(Kind::Easy), tightness(Kind::Tight), tightness(Kind::OverBooked));
        assert_eq!((easy.0, tight.0, over.0), (17, 10, 3));
        assert!(easy.1 < 0.5 * tight.1 && tight.1 < 0.8 * over.1);
    }
}

//! The plan of the day to be served: graph, High Water Mark, SHALE, unavoidable shortage, held against plain recomputations.
//!
//! [`Cells`] is the other side: every node cut at every flight's border, nothing merged, supply from the curves by hand.

use std::path::Path;

use admix::log::compiled::Contract;
use admix::log::schema::{ControlRow, DAY_MS};
use admix::log::targeting::Targeting;
use admix::plan::forecast::Node;
use admix::plan::shale::{Rounds, Shale};
use admix::plan::{Forecast, Graph, Hwm, shortage};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::harness::{PROGRAM, days};
use super::support::admix;
use super::worlds::{MIDNIGHT, cases, plain_contract};

const QUARTER: u64 = DAY_MS / 96;

#[derive(Debug, Clone)]
struct World {
    forecast: Forecast,
    contracts: Vec<Contract>,
    presence: f64,
}

impl World {
    fn graph(&self) -> Graph {
        Graph::new(&self.forecast, &self.contracts, MIDNIGHT, |_| self.presence)
    }

    fn limit(&self, j: usize) -> f64 {
        self.presence * self.contracts[j].rate
    }

    fn demand(&self, j: usize) -> f64 {
        self.contracts[j].owed() as f64
    }
}

fn contract(ad_id: u64, required: u64) -> Contract {
    Contract::before_the_day(&ControlRow { ad_id, ..plain_contract(0, required, 1.0) })
}

fn node(region: u32, gender: u8, pv: f64) -> Node {
    Node { slot_id: 1, region, gender, age: 0, pv, curve: 0, ad_ids: vec![] }
}

fn flat() -> Vec<Vec<f64>> {
    vec![vec![1.0 / 96.0; 96]]
}

/// Up to 8 nodes and 6 contracts: two curves, flights off the quarter-hour grid, rates, nodes with contracts of their own.
fn world() -> impl Strategy<Value = World> {
    let curve = vec(0.0..1.0f64, 96).prop_map(|shares| {
        let sum: f64 = shares.iter().sum();
        shares.into_iter().map(|s| s / sum).collect::<Vec<_>>()
    });
    let nodes = vec((1u32..=3, 1u8..=2, 0.0..200.0f64, 0usize..2, vec(1u64..=6, 0..3)), 1..=8).prop_map(|nodes| {
        let given = |ids: Vec<u64>| if ids.len() == 2 { ids } else { vec![] };
        let node_of = |(region, gender, pv, curve, ids)| Node { curve, ad_ids: given(ids), ..node(region, gender, pv) };
        nodes.into_iter().map(node_of).collect::<Vec<_>>()
    });
    let flight = prop_oneof![
        3 => Just((0, DAY_MS)),
        2 => (0..DAY_MS / 2, DAY_MS / 2 + 1..=DAY_MS),
        1 => Just((DAY_MS, 2 * DAY_MS)),
    ];
    let terms =
        (1u64..300, flight, vec(1u32..=3, 0..=2), vec(1u32..=2, 0..=1), select(vec![1.0, 1.0, 0.6, 0.0]), 0u32..40);
    let contracts = vec(terms, 1..=6).prop_map(|terms| {
        let contract_of = |(ad_id, (required, (start, end), region, gender, rate, penalty))| Contract {
            start_ms: MIDNIGHT + start,
            end_ms: MIDNIGHT + end,
            targeting: Targeting { region, gender, ..Targeting::default() },
            rate,
            // Equal penalties are rare, and told apart by the test of the attribution.
            penalty: f64::from(penalty) / 4.0,
            ..contract(ad_id, required)
        };
        (1..).zip(terms).map(contract_of).collect::<Vec<_>>()
    });
    (nodes, vec(curve, 2), contracts, select(vec![1.0, 0.8])).prop_map(|(nodes, curves, contracts, presence)| World {
        forecast: Forecast { nodes, curves },
        contracts,
        presence,
    })
}

/// Supply as (page views, contracts): nodes cut at all flights' borders.
struct Cells(Vec<(f64, Vec<usize>)>);

impl Cells {
    fn of(world: &World) -> Self {
        let mut borders: Vec<u64> = world.contracts.iter().flat_map(|c| [c.start_ms, c.end_ms]).collect();
        borders.extend((0..=96).map(|i| MIDNIGHT + i * QUARTER));
        borders.retain(|b| (MIDNIGHT..=MIDNIGHT + DAY_MS).contains(b));
        borders.sort_unstable();
        borders.dedup();
        let mut cells = Vec::new();
        for node in &world.forecast.nodes {
            for stretch in borders.windows(2) {
                let quarter = ((stretch[0] - MIDNIGHT) / QUARTER) as usize;
                let part = (stretch[1] - stretch[0]) as f64 / QUARTER as f64;
                let wants = |c: &Contract| {
                    let targeted = match node.ad_ids.as_slice() {
                        [] => c.targeting.matches(node.slot_id, node.region, node.gender, node.age),
                        ids => ids.contains(&c.ad_id),
                    };
                    targeted && c.start_ms <= stretch[0] && stretch[1] <= c.end_ms
                };
                let contracts = (0..world.contracts.len()).filter(|&j| wants(&world.contracts[j])).collect();
                cells.push((node.pv * world.forecast.curves[node.curve][quarter] * part, contracts));
            }
        }
        Self(cells)
    }

    /// The most that a set of contracts can be given together, demands aside: no group gives more than it has, nor more
    /// than the limits of who wants it.
    fn capacity(&self, world: &World, set: u32) -> f64 {
        let of_cell = |(pv, contracts): &(f64, Vec<usize>)| {
            let limits: f64 = contracts.iter().filter(|&&j| set >> j & 1 == 1).map(|&j| world.limit(j)).sum();
            pv * limits.min(1.0)
        };
        self.0.iter().map(of_cell).sum()
    }

    /// The most that can be delivered to a set of contracts: the least cut, by trying all of them.
    fn deliverable(&self, world: &World, set: u32) -> f64 {
        let n = world.contracts.len();
        let cuts = (0..1u32 << n).filter(|cut| cut & !set == 0).map(|cut| {
            let demands: f64 = (0..n).filter(|j| (set & !cut) >> j & 1 == 1).map(|j| world.demand(j)).sum();
            demands + self.capacity(world, cut)
        });
        cuts.fold(f64::INFINITY, f64::min)
    }
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * (1.0 + a.abs().max(b.abs()))
}

/// What a plan puts on a group, and that it is within its supply and everyone's limit.
fn check_flow(graph: &Graph, flow: &[f64], planned: &[f64]) -> Result<(), TestCaseError> {
    for (g, &supply) in graph.supply().iter().enumerate() {
        let taken: f64 = graph.contracts_of(g).iter().map(|&(_, edge)| flow[edge as usize]).sum();
        prop_assert!(taken <= supply * (1.0 + 1e-9), "{taken} of {supply}");
        for &(j, edge) in graph.contracts_of(g) {
            let most = graph.terms()[j as usize].limit * supply;
            prop_assert!((0.0..=most * (1.0 + 1e-9)).contains(&flow[edge as usize]));
        }
    }
    for (j, planned) in planned.iter().enumerate() {
        let sum: f64 = flow[graph.edges_of(j)].iter().sum();
        prop_assert!(near(sum, *planned));
        prop_assert!(sum <= graph.terms()[j].demand * (1.0 + 1e-9), "no more than is owed");
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn the_graph_holds_the_supply_of_every_contract_and_its_curve(world in world()) {
        let graph = world.graph();
        let cells = Cells::of(&world);
        for (j, terms) in graph.terms().iter().enumerate() {
            let own = cells.capacity(&world, 1 << j);
            prop_assert!(near(terms.supply, own), "{} and {own}", terms.supply);
            let forecast = world.forecast.supply(&world.contracts[j], MIDNIGHT, world.presence);
            prop_assert!(near(terms.supply, forecast.total()));
        }
        // Everything that a contract may use, as if it were alone: its curve is that of its supply.
        let mut flow = vec![0.0; graph.edges()];
        for j in 0..world.contracts.len() {
            for (edge, &g) in graph.edges_of(j).zip(graph.groups_of(j)) {
                prop_assert_eq!(graph.group_of(edge), g as usize);
                flow[edge] = graph.terms()[j].limit * graph.supply()[g as usize];
            }
        }
        for (j, curve) in graph.curves(&world.forecast, &flow).iter().enumerate() {
            let supply = world.forecast.supply(&world.contracts[j], MIDNIGHT, world.presence);
            for (i, &impressions) in curve.iter().enumerate() {
                let expected = supply.before((i as u64 + 1) * QUARTER) - supply.before(i as u64 * QUARTER);
                prop_assert!((f64::from(impressions) - expected).abs() < 1e-3, "{impressions} and {expected}");
            }
        }
        prop_assert!(graph.edges() as u64 <= graph.unmerged_edges());
    }

    /// Contract by contract on the unmerged cells, each probability by halving.
    #[test]
    fn high_water_mark_is_that_of_the_unmerged_supply(world in world()) {
        let graph = world.graph();
        let plan = Hwm::of(&graph);
        check_flow(&graph, &plan.flow, &plan.planned)?;
        let cells = Cells::of(&world);
        let mut left: Vec<f64> = cells.0.iter().map(|c| c.0).collect();
        let supplies: Vec<f64> = plan.order.iter().map(|&j| graph.terms()[j as usize].supply).collect();
        prop_assert!(supplies.is_sorted_by(|a, b| a <= b), "the scarcest first");
        for &j in &plan.order {
            let j = j as usize;
            let taken = |theta: f64, left: &[f64]| -> Vec<f64> {
                let of_cell = |((pv, contracts), left): (&(f64, Vec<usize>), &f64)| {
                    if contracts.contains(&j) { left.min(theta * world.limit(j) * pv) } else { 0.0 }
                };
                cells.0.iter().zip(left).map(of_cell).collect()
            };
            let (mut low, mut high) = (0.0, 1.0);
            for _ in 0..60 {
                let theta = 0.5 * (low + high);
                if taken(theta, &left).iter().sum::<f64>() < world.demand(j) { low = theta } else { high = theta }
            }
            let sum: f64 = taken(high, &left).iter().sum();
            prop_assert!(near(plan.planned[j], sum), "{} planned, {sum} by halving", plan.planned[j]);
            let at_plan: f64 = taken(plan.theta[j], &left).iter().sum();
            prop_assert!(near(at_plan, sum), "theta {} gives {at_plan}, {sum} by halving", plan.theta[j]);
            prop_assert!((0.0..=1.0).contains(&plan.theta[j]));
            prop_assert!(plan.theta[j] == 1.0 || near(plan.planned[j], world.demand(j)));
            let gone = taken(high, &left);
            left.iter_mut().zip(gone).for_each(|(left, gone)| *left -= gone);
        }
    }

    /// By the least cut over all sets of contracts: how much goes missing at least, and whose it is.
    #[test]
    fn the_shortage_is_the_least_there_can_be_and_the_cheapest_penalty_bears_it(world in world()) {
        let graph = world.graph();
        let missing = shortage::unavoidable(&graph, &Hwm::of(&graph));
        let cells = Cells::of(&world);
        let n = world.contracts.len();
        let mut penalties: Vec<f64> = world.contracts.iter().map(|c| c.penalty).collect();
        penalties.sort_by(f64::total_cmp);
        penalties.dedup();
        // Those above any penalty lack together what they would lack if the others were not there.
        for &least in &penalties {
            let above = (0..n).filter(|&j| world.contracts[j].penalty >= least);
            let set = above.clone().fold(0, |set, j| set | 1 << j);
            let demand: f64 = above.clone().map(|j| world.demand(j)).sum();
            let found: f64 = above.map(|j| missing[j]).sum();
            let expected = demand - cells.deliverable(&world, set);
            prop_assert!((found - expected).abs() < 1e-6 * (1.0 + demand), "penalty {least} up: {found}, least {expected}");
        }
        for (j, &missing) in missing.iter().enumerate() {
            prop_assert!((0.0..=world.demand(j)).contains(&missing));
        }
    }

    /// The conditions of optimality of the problem in `plan::shale`, which is convex: whatever meets them is its solution.
    #[test]
    fn stage_one_of_shale_meets_the_conditions_of_optimality(world in world()) {
        let graph = world.graph();
        let hwm = Hwm::of(&graph);
        let plan = Shale::of(&graph, &hwm.order, Rounds { most: 20_000, tolerance: 1e-11 });
        check_flow(&graph, &plan.flow, &plan.planned)?;
        let x = |j: usize, g: usize| {
            let share = plan.shares[j];
            (share.even * (1.0 + (share.alpha - plan.beta[g]) / plan.spread)).clamp(0.0, 1.0)
        };
        for g in 0..graph.supply().len() {
            let load: f64 = graph
                .contracts_of(g)
                .iter()
                .map(|&(j, _)| graph.terms()[j as usize].limit * x(j as usize, g))
                .sum();
            prop_assert!(plan.beta[g] >= 0.0 && load <= 1.0 + 1e-6, "a group is booked {load} times");
            prop_assert!(plan.beta[g] <= 1e-9 || load >= 1.0 - 1e-6, "priced, and only {load} of it taken");
        }
        let mut met = true;
        for (j, terms) in graph.terms().iter().enumerate() {
            let alpha = plan.shares[j].alpha;
            let delivered: f64 =
                graph.groups_of(j).iter().map(|&g| terms.limit * graph.supply()[g as usize] * x(j, g as usize)).sum();
            prop_assert!((0.0..=terms.penalty).contains(&alpha));
            let slack = 1e-5 * terms.demand;
            if terms.supply > 0.0 && alpha < terms.penalty {
                prop_assert!(delivered >= terms.demand - slack, "{delivered} of {}, {alpha}", terms.demand);
            }
            prop_assert!(alpha <= 0.0 || delivered <= terms.demand + slack, "{delivered} of {}", terms.demand);
            met &= delivered >= terms.demand - slack;
        }
        // Where stage one delivers everything, stage two does.
        for (terms, planned) in graph.terms().iter().zip(&plan.planned).filter(|_| met) {
            prop_assert!(*planned >= terms.demand * (1.0 - 1e-4), "{planned} of {}", terms.demand);
        }
    }

    /// However early stage one is stopped, stage two serves within the supply.
    #[test]
    fn shale_can_be_stopped_at_any_time(world in world(), most in 0usize..4) {
        let graph = world.graph();
        let plan = Shale::of(&graph, &Hwm::of(&graph).order, Rounds { most, tolerance: 0.0 });
        check_flow(&graph, &plan.flow, &plan.planned)?;
        prop_assert!(plan.shares.iter().all(|s| s.zeta.is_finite() && s.alpha.is_finite()));
    }

    #[test]
    fn alone_on_its_supply_a_contract_gets_demand_over_supply(world in world()) {
        let world = World { contracts: world.contracts[..1].to_vec(), ..world };
        let graph = world.graph();
        let supply = graph.terms()[0].supply;
        let theta = if supply > 0.0 { (world.demand(0) / supply).min(1.0) } else { 1.0 };
        let hwm = Hwm::of(&graph);
        prop_assert!(near(hwm.theta[0], theta));
        let shale = Shale::of(&graph, &hwm.order, Rounds::default());
        prop_assert!(near(shale.theta(0), theta));
        let missing = shortage::unavoidable(&graph, &hwm)[0];
        prop_assert!((missing - (world.demand(0) - supply).max(0.0)).abs() < 1e-6 * (1.0 + world.demand(0)));
    }
}

/// One region is sold twice: the contract that may go nowhere else has it, the other one moves.
#[test]
fn the_scarcer_contract_keeps_the_only_place_it_has() {
    let mut bound_to_1 = contract(7, 60);
    bound_to_1.targeting.region = vec![1];
    let world = World {
        forecast: Forecast { nodes: vec![node(1, 1, 100.0), node(2, 1, 100.0)], curves: flat() },
        contracts: vec![contract(3, 120), bound_to_1],
        presence: 1.0,
    };
    let graph = world.graph();
    let plan = Hwm::of(&graph);
    assert_eq!(plan.order, [1, 0]);
    // 40 of region 1 and 80 of region 2.
    assert!(near(plan.theta[1], 0.6) && near(plan.theta[0], 0.8), "{:?}", plan.theta);
    assert!(shortage::unavoidable(&graph, &plan).iter().all(|&m| m == 0.0));
    let contention = graph.contention();
    assert!(near(contention[1], 1.2) && near(contention[0], 0.9), "{contention:?}");
}

/// What the control table prescribes is kept, and takes its part of what others may have.
#[test]
fn a_prescribed_probability_is_kept() {
    let mut prescribed = contract(1, 10);
    prescribed.theta = Some(0.75);
    let world = World {
        forecast: Forecast { nodes: vec![node(1, 1, 100.0)], curves: flat() },
        contracts: vec![prescribed, contract(2, 40)],
        presence: 1.0,
    };
    let graph = world.graph();
    let plan = Hwm::of(&graph);
    assert!(plan.theta[0] == 0.75 && near(plan.theta[1], 0.4), "{:?}", plan.theta);
    // Not even a prescribed excess is a shortage: both can be had.
    assert!(shortage::unavoidable(&graph, &plan).iter().all(|&m| m == 0.0));
}

/// Nodes that differ in attributes that nobody names, or only in their curve, are one group.
#[test]
fn nodes_that_serve_the_same_contracts_are_merged() {
    let mut part = contract(2, 5);
    part.end_ms = MIDNIGHT + DAY_MS / 2;
    part.targeting.gender = vec![1];
    let nodes: Vec<Node> = (1..=50).map(|region| node(region, (region % 2) as u8, 2.0)).collect();
    let world =
        World { forecast: Forecast { nodes, curves: flat() }, contracts: vec![contract(1, 9), part], presence: 1.0 };
    let graph = world.graph();
    // Gender 1 before and after noon, and the rest.
    assert_eq!((graph.supply().len(), graph.edges(), graph.unmerged_edges()), (3, 4, 100));
    assert!(near(graph.supply().iter().sum(), 100.0));
}

fn json(arguments: &[&str], paths: &[&Path]) -> serde_json::Value {
    let output = admix().args(arguments).args(paths).assert().success();
    serde_json::from_slice(&output.get_output().stdout).unwrap()
}

/// A directory that announces a day: two contracts want more than region 1 has.
fn announce(dir: &Path, date: &str) {
    std::fs::write(dir.join("day.toml"), format!("date = \"{date}\"\n")).unwrap();
    let control = "ad_id\trequired\ttargeting\tpenalty\tclick_value\n\
                   501\t700\tregion:1\t4\t0\n502\t600\tregion:1\t2.5\t0\n503\t300\t\t3\t0\n";
    std::fs::write(dir.join("control.tsv"), control).unwrap();
    let curve = vec![(1.0 / 24.0).to_string(); 24].join(",");
    let rows: String =
        [(1, 1000), (2, 500)].map(|(region, pv)| format!("{region}\t1\t{region}\t1\t1\t{pv}\t{curve}\t\n")).concat();
    let header = "node_id\tslot_id\tregion\tgender\tage\tpv\tcurve\tad_ids\n";
    std::fs::write(dir.join("inventory.tsv"), format!("{header}{rows}")).unwrap();
}

#[test]
fn the_day_to_be_served_is_planned_from_its_announcement_alone() {
    let dir = tempfile::tempdir().unwrap();
    announce(dir.path(), "2026-01-09");
    let training = days().join("day-0");
    // A track log that cannot be read would be an error if anyone opened it.
    std::fs::write(dir.path().join("track_log.tsv"), "not a table at all").unwrap();
    let plan = json(&["plan", "--json"], &[&training, Path::new("--for"), dir.path()]);
    assert_eq!(plan["format"], 2);
    let served = &plan["served"];
    assert_eq!((&served["date"], &served["own_inventory"]), (&"2026-01-09".into(), &true.into()));
    let short = |id: &str| served["contracts"][id]["unavoidable_shortage"].as_f64().unwrap();
    // Unseen contracts stand in as many queues as the others do: presence is that of the training days.
    let presence = plan["unseen"]["presence"].as_f64().unwrap();
    let lacking = (1300.0 - 1000.0f64.min(2000.0 * presence)).max(700.0 - 1000.0 * presence);
    assert!((short("502") - lacking).abs() < 1e-6 && short("501") == 0.0 && short("503") == 0.0, "{served}");
    let curve: Vec<f64> =
        served["contracts"]["503"]["curve"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
    assert_eq!(curve.len(), 96);
    assert!((curve.iter().sum::<f64>() - 300.0).abs() < 0.01, "{curve:?}");

    let table = admix().arg("plan").arg(&training).arg("--for").arg(dir.path()).assert().success();
    let table = String::from_utf8(table.get_output().stdout.clone()).unwrap();
    let money = format!("{:.2}", 2.5 * lacking);
    let row = table.split("OVER-BOOKED").nth(1).unwrap().lines().find(|l| l.trim_start().starts_with("502")).unwrap();
    assert!(row.contains(&format!("{lacking:.1}")) && row.ends_with(&money), "{row}");
}

#[test]
fn a_day_without_a_date_follows_the_training_days_and_a_missing_control_is_named() {
    let dir = tempfile::tempdir().unwrap();
    announce(dir.path(), "2026-01-09");
    std::fs::remove_file(dir.path().join("day.toml")).unwrap();
    let training = days().join("day-0");
    let last = json(&["plan", "--json"], &[&training]);
    assert_eq!(last["served"]["own_inventory"], false);
    let date: &str = last["served"]["date"].as_str().unwrap();
    let next = json(&["plan", "--json"], &[&training, Path::new("--for"), dir.path()]);
    let tomorrow = admix::log::day::parse_date(date).unwrap() + 1;
    assert_eq!(next["served"]["date"], admix::log::day::format_date(tomorrow));
    std::fs::remove_file(dir.path().join("control.tsv")).unwrap();
    let failed = admix().arg("plan").arg(&training).arg("--for").arg(dir.path()).assert().code(2);
    assert!(String::from_utf8_lossy(&failed.get_output().stderr).contains("control"));
}

#[test]
fn train_takes_a_plan_file_and_an_older_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plan.json");
    admix().arg("plan").args([days().join("day-0"), days().join("day-1")]).arg("--out").arg(&file).assert().success();
    let run = dir.path().join("run");
    let config = dir.path().join("config.toml");
    let list = |day: &str| format!("[\"{}\"]", days().join(day).display());
    let text = format!(
        "[data]\ntrain = {}\nvalidation = {}\n[policy]\nhidden = 8\n[learner]\nbatch = 64\nsamples_per_update = 64\n\
         pool = 640\ncritic_hidden = 8\ncritic_head_start = 2\n[evaluate]\nevery = 4\n[budget]\nmax_updates = 8\n",
        list("day-0"),
        list("day-1")
    );
    std::fs::write(&config, text).unwrap();
    let train = |run: &Path, plan: &Path| {
        let mut command = std::process::Command::new(PROGRAM);
        command.args(["train", "--serial", "--device", "cpu", "--config"]).arg(&config);
        command.arg("--run-dir").arg(run).arg("--plan").arg(plan).output().unwrap()
    };
    let output = train(&run, &file);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let given: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let used = std::fs::read(run.join("plan/plan.json")).unwrap();
    let used: serde_json::Value = serde_json::from_slice(&used).unwrap();
    assert_eq!(given, used);
    assert_eq!(used["days"].as_array().unwrap().len(), 2, "the given plan, not one of data.train");

    let mut old = given;
    old["format"] = 1.into();
    old.as_object_mut().unwrap().remove("served");
    std::fs::write(&file, old.to_string()).unwrap();
    let output = train(&dir.path().join("another"), &file);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("plan format 1") && text.contains("make the plan again"), "{text}");
}

/// Training on more days than a given plan was made from ended every process at its start.
#[test]
fn a_plan_of_fewer_days_than_are_trained_on_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    let path = |i: u32| crate::harness::days().join(format!("day-{i}"));
    admix().arg("plan").arg(path(0)).arg("--out").arg(&plan).assert().success();
    let train = format!("data.train=[{:?}, {:?}]", path(0), path(2));
    let sets = [&*train, "data.test=[]", "budget.max_updates=16", "learner.critic_head_start=4"];
    crate::harness::train(&sets, &["--plan", plan.to_str().unwrap()]);
}

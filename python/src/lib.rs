//! The Python module `admix`: [`admix::score::Scorer`] within a Python process, for evaluation where its users do it.
//!
//! Requests and decisions are the JSON objects of `admix score --format jsonl` as dictionaries, so a notebook, a server's client
//! and a file of requests share one form. `admix.pyi` has the signatures and their documentation.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use admix::log::error::BadValue;
use admix::log::schema::{AdType, TrackRow};
use admix::score::json::JsonRequest;
use admix::score::{DayFiles, Exposure, Heard, ScoreOptions, ServedDay, ServedPolicy, ServedValues};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use pythonize::depythonize;

fn value_error(error: impl Into<anyhow::Error>) -> PyErr {
    PyValueError::new_err(format!("{:#}", error.into()))
}

fn bad_value(bad: &BadValue) -> PyErr {
    let BadValue { column, value, rule, .. } = bad;
    PyValueError::new_err(format!("{column} `{value}`: {rule}"))
}

fn row(request: &Bound<'_, PyAny>) -> PyResult<TrackRow> {
    let request: JsonRequest = depythonize(request).map_err(|e| PyValueError::new_err(e.to_string()))?;
    request.check().map_err(|bad| bad_value(&bad))
}

/// The ad to show on a request, with the scores behind the choice.
#[pyclass(frozen, get_all, module = "admix")]
struct Decision {
    request_id: u64,
    /// `None`: nothing may be shown.
    chosen: Option<u64>,
    /// Whether the chosen ad is a contract's.
    is_contract: bool,
    scores: BTreeMap<u64, f64>,
}

#[pymethods]
impl Decision {
    fn __repr__(&self) -> String {
        let chosen = self.chosen.map_or_else(|| "None".to_owned(), |ad_id| ad_id.to_string());
        format!("Decision(request_id={}, chosen={chosen}, {} scores)", self.request_id, self.scores.len())
    }
}

impl From<admix::score::Decision> for Decision {
    fn from(decision: admix::score::Decision) -> Self {
        Self {
            request_id: decision.request_id,
            chosen: decision.chosen.map(|(ad_id, _)| ad_id),
            is_contract: matches!(decision.chosen, Some((_, AdType::Contract))),
            scores: decision.scores.into_iter().collect(),
        }
    }
}

/// A policy that serves a day. Threads take turns with it.
#[pyclass(frozen, module = "admix")]
struct Scorer(Mutex<admix::score::Scorer>);

impl Scorer {
    /// A thread that panicked holding it has left whole counters: each is written once.
    fn lock(&self) -> MutexGuard<'_, admix::score::Scorer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decide_row(scorer: &mut admix::score::Scorer, row: &TrackRow) -> PyResult<Decision> {
        let mut decision = admix::score::Decision::default();
        scorer.decide(row, &mut decision).map_err(|bad| bad_value(&bad))?;
        Ok(decision.into())
    }
}

#[pymethods]
impl Scorer {
    #[new]
    #[pyo3(signature = (policy, control, *, plan=None, inventory=None, day=None, ts_ms=None, rate_seed=0, feedback_delay_s=0.0,
                        complete_queues=false, stateless=false, exposures=false, confirm_within_s=None, values=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        policy: PathBuf,
        control: PathBuf,
        plan: Option<PathBuf>,
        inventory: Option<PathBuf>,
        day: Option<PathBuf>,
        ts_ms: Option<u64>,
        rate_seed: u64,
        feedback_delay_s: f64,
        complete_queues: bool,
        stateless: bool,
        exposures: bool,
        confirm_within_s: Option<f64>,
        values: Option<PathBuf>,
    ) -> PyResult<Self> {
        for seconds in [Some(feedback_delay_s), confirm_within_s].into_iter().flatten() {
            if !(seconds.is_finite() && seconds >= 0.0) {
                return Err(PyValueError::new_err("feedback_delay_s and confirm_within_s must be 0 or more seconds"));
            }
        }
        let policy = policy.to_str().ok_or_else(|| PyValueError::new_err("the policy's path is not UTF-8"))?;
        let policy = ServedPolicy::open(policy, plan.as_deref()).map_err(value_error)?;
        let values = values.as_deref().map_or(ServedValues::Own, ServedValues::from);
        let told = policy.values(&values).map_err(value_error)?;
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let files = DayFiles { control, inventory, day };
        let day = ServedDay::read(&files, ts_ms.unwrap_or_else(now)).map_err(value_error)?.told(&told);
        let options = ScoreOptions {
            rate_seed,
            feedback_delay_s,
            complete_queues,
            stateless,
            exposures: exposures || confirm_within_s.is_some(),
            confirm_within_s,
        };
        let scorer = admix::score::Scorer::new(&day, &policy, options).map_err(value_error)?;
        Ok(Self(Mutex::new(scorer)))
    }

    fn decide(&self, request: &Bound<'_, PyAny>) -> PyResult<Decision> {
        Self::decide_row(&mut self.lock(), &row(request)?)
    }

    fn decide_many(&self, py: Python<'_>, requests: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<Decision>> {
        let rows: Vec<TrackRow> = requests.iter().map(row).collect::<PyResult<_>>()?;
        py.detach(|| {
            let mut scorer = self.lock();
            for row in &rows {
                scorer.check(row).map_err(|bad| bad_value(&bad))?;
            }
            rows.iter().map(|row| Self::decide_row(&mut scorer, row)).collect()
        })
    }

    fn probe(&self, request: &Bound<'_, PyAny>) -> PyResult<Decision> {
        let row = row(request)?;
        let mut decision = admix::score::Decision::default();
        self.lock().probe(&row, &mut decision).map_err(|bad| bad_value(&bad))?;
        Ok(decision.into())
    }

    fn confirm(&self, request_id: u64, ad_id: u64, ts_ms: u64) -> bool {
        self.lock().confirm(Exposure { request_id, ad_id, ts_ms }) == Heard::News
    }

    fn begin_with(&self, delivered: BTreeMap<u64, u64>) -> Vec<u64> {
        self.lock().begin_with(&delivered)
    }

    fn save<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.lock().save())
    }

    fn restore(&self, state: &[u8]) -> PyResult<bool> {
        self.lock().restore(state).map(|restored| restored.goes_on).map_err(value_error)
    }

    fn deliveries<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = PyDict::new(py);
        for (ad_id, delivered, observed) in self.lock().deliveries() {
            counts.set_item(ad_id, (delivered, observed))?;
        }
        Ok(counts)
    }

    #[getter]
    fn version(&self) -> String {
        self.lock().version().to_owned()
    }

    #[getter]
    fn date(&self) -> String {
        self.lock().day().date.clone()
    }

    #[getter]
    fn time_ms(&self) -> u64 {
        self.lock().time_ms()
    }

    fn __repr__(&self) -> String {
        let scorer = self.lock();
        format!("Scorer({} on {})", scorer.version(), scorer.day().date)
    }
}

#[pymodule]
#[pyo3(name = "admix")]
fn binding(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<Scorer>()?;
    m.add_class::<Decision>()
}

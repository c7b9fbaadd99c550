use super::*;

/// Generates days whose volume deviates from a flat forecast of 100,000 requests by an AR(1) path over the hours, times `bias`.
fn days(number: u64, sd: f64, correlation: f64, bias: f64) -> Vec<DayVolume> {
    let uniform = |day: u64, k: u64| crate::log::draw::hash64(77, day, k) as f64 / u64::MAX as f64;
    // A sum of twelve uniforms is nearly normal.
    let normal = |day: u64, k: u64| (0..12).map(|i| uniform(day, 100 * k + i)).sum::<f64>() - 6.0;
    let day = |d: u64| {
        let mut log = normal(d, 0);
        let mut factors = Vec::new();
        for hour in 1..=24 {
            factors.push(bias * (sd * log - sd * sd / 2.0).exp());
            log = correlation * log + (1.0 - correlation * correlation).sqrt() * normal(d, hour);
        }
        DayVolume::of_rates(100_000.0, |minute| factors[minute / 60])
    };
    (0..number).map(day).collect()
}

fn start() -> Moments {
    Moments::default()
}

#[test]
fn the_shipped_moments_are_of_this_version() {
    assert!(Moments::shipped().days() >= 50.0);
    let model = VolumeModel::fit(&[]);
    assert!(model.is_sound());
    // Deviations of ten minutes matter now and fade; the residual grows.
    let of_minutes = |span: usize| model.weights[span][5] + model.calm * model.weights[span][BASE + 5];
    assert!(of_minutes(0) > 0.5 && of_minutes(4) < 0.3, "{:?}", model.weights);
    assert!(model.spread[0] < model.spread[2], "{:?}", model.spread);
}

/// The regression finds the share of an hour's deviation that remains some hours later, as the correlation predicts.
#[test]
fn the_regression_recovers_a_planted_process() {
    for correlation in [0.3f64, 0.7] {
        let model = VolumeModel::fit_from(&start(), &days(300, 0.3, correlation, 1.0));
        let shift = -0.045;
        // The last hour had twice the requests; the day was as usual before, and is now a little above.
        let high = Deviation { minutes: 0.6, hour: 0.4, day: 0.05 };
        let usual = Deviation { minutes: shift, hour: shift, day: shift };
        let gain = |ahead: usize| {
            let [a, b] = [high, usual].map(|d| model.courses(d, 0.5, 48)[1][48 + ahead].ln());
            a - b
        };
        // Spans of 0.5 to 1.5 h and 1.5 to 3 h ahead: the next hour, and the two after it.
        let (next, later, evening) = (gain(4), gain(10), gain(40));
        assert!(next > later && later > evening - 0.05, "{next} {later} {evening}");
        assert!((next / 0.6 - correlation).abs() < 0.25, "{correlation}: {next}");
        assert!(evening.abs() < 0.15, "{correlation}: {evening}");
    }
}

/// Days that hardly stray once counted for nothing beside the shipped ones, and missing requests were expected to come back.
#[test]
fn in_a_calm_world_missing_requests_stay_missing() {
    let evening = |sd: f64| {
        let model = VolumeModel::fit(&days(5, sd, 0.5, 1.0));
        let missing = Deviation { minutes: -0.29, hour: -0.29, day: -0.29 };
        (model.courses(missing, 0.5, 48)[1][80], model.spread[4])
    };
    let ((calm, sure), (restless, unsure)) = (evening(0.03), evening(0.35));
    assert!(calm < 0.84 && restless > calm + 0.02, "{calm} {restless}");
    assert!(sure < 0.7 * unsure, "{sure} {unsure}");
}

/// Policies made before the calm was an input have seven weights, and serve as they did.
#[test]
fn a_model_without_the_calm_is_read() {
    let mut model = VolumeModel::fit(&days(4, 0.2, 0.5, 1.0));
    model.calm = 0.0;
    let expected = model.courses(Deviation { minutes: 0.1, hour: 0.2, day: 0.1 }, 0.4, 30);
    let mut json = serde_json::to_value(&model).unwrap();
    let fields = json.as_object_mut().unwrap();
    fields.remove("calm");
    for span in fields["weights"].as_array_mut().unwrap() {
        span.as_array_mut().unwrap().truncate(BASE);
    }
    let old: VolumeModel = serde_json::from_value(json.clone()).unwrap();
    assert!(old.is_sound());
    assert_eq!(old.courses(Deviation { minutes: 0.1, hour: 0.2, day: 0.1 }, 0.4, 30), expected);
    json["weights"][2].as_array_mut().unwrap().pop();
    assert!(!serde_json::from_value::<VolumeModel>(json).unwrap().is_sound());
}

#[test]
fn a_forecaster_who_is_always_wrong_is_corrected_before_the_day_begins() {
    let model = VolumeModel::fit_from(&start(), &days(40, 0.1, 0.5, 1.5));
    let courses = model.courses(Deviation::default(), 0.0, 0);
    let evening = courses[1][80];
    assert!((evening - 1.5).abs() < 0.12, "{evening}");
    assert!(courses[0][80] < courses[1][80] && courses[1][80] < courses[2][80]);
}

#[test]
fn regions_are_corrected_beyond_what_all_requests_deviate_by() {
    let mut days = days(6, 0.1, 0.5, 1.2);
    for day in &mut days {
        let all = day.log_ratio().exp();
        day.set_region(1, 30_000.0 * all * 0.7, 30_000.0);
        day.set_region(2, 70_000.0 * all, 70_000.0);
    }
    let model = VolumeModel::fit(&days);
    let (wrong, right) = (model.region_factor(1), model.region_factor(2));
    assert!(wrong > 0.66 && wrong < 0.82 && (right - 1.0).abs() < 0.03, "{wrong} {right}");
    assert_eq!(model.region_factor(9), 1.0);
}

#[test]
fn a_day_without_requests_or_forecast_leaves_figures_that_can_be_used() {
    let empty = DayVolume::of_rates(0.0, |_| 0.0);
    let silent = DayVolume::of_rates(1000.0, |_| 0.0);
    for days in [vec![empty.clone()], vec![silent.clone()], vec![empty, silent]] {
        let model = VolumeModel::fit(&days);
        assert!(model.is_sound());
        let extreme = Deviation::of([[0.0, 1e9], [1e9, 0.0], [0.0, 0.0]], 1.0);
        for course in model.courses(extreme, 1.0, 95).iter().chain(&model.courses(extreme, 0.0, 0)) {
            assert!(course.iter().all(|f| f.is_finite() && *f > 0.0));
        }
    }
}

//! Means and medians, and Student's intervals of means.

/// Returns the mean of values, of which there is at least one.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the median; `None` without values.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    (n > 0).then(|| 0.5 * (values[(n - 1) / 2] + values[n / 2]))
}

/// Returns the sample standard deviation; `None` for fewer than two values.
pub fn sd(values: &[f64]) -> Option<f64> {
    let m = mean(values);
    let squares: f64 = values.iter().map(|v| (v - m).powi(2)).sum();
    (values.len() > 1).then(|| (squares / (values.len() - 1) as f64).sqrt())
}

/// Returns the 0.975 quantile of Student's t.
fn student(degrees: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
    ];
    match degrees {
        0 => f64::INFINITY,
        1..=30 => TABLE[degrees - 1],
        // First term of the Cornish-Fisher expansion, accurate to 0.001 from here on.
        n => 1.96 + (1.96f64.powi(3) + 1.96) / (4.0 * n as f64),
    }
}

/// Returns Student's 95 % interval of the mean; `None` for fewer than two values.
pub fn interval(values: &[f64]) -> Option<[f64; 2]> {
    let half = student(values.len() - 1) * sd(values)? / (values.len() as f64).sqrt();
    Some([mean(values) - half, mean(values) + half])
}

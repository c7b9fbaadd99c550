//! The two solvers for the equations of a Newton step.

const CONJUGATE_STEPS: usize = 50;

/// Solves `A x = b` by conjugate gradients with the diagonal as preconditioner, until the residual is `tolerance` of the
/// initial one, in the norm of the preconditioner. `product` writes `A v` for a symmetric, positive definite `A`; if `b` is 0
/// because an unknown is fixed, `x` stays 0.
pub fn conjugate_gradients(
    product: impl Fn(&[f64], &mut Vec<f64>),
    diagonal: &[f64],
    b: &[f64],
    tolerance: f64,
    x: &mut [f64],
) {
    let mut residual = b.to_vec();
    let precondition = |r: &[f64]| r.iter().zip(diagonal).map(|(r, d)| r / d.max(1e-12)).collect::<Vec<f64>>();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut direction = precondition(&residual);
    let mut image = Vec::new();
    let mut size = dot(&residual, &direction);
    let end = tolerance * tolerance * size;
    for _ in 0..CONJUGATE_STEPS {
        if size <= end {
            break;
        }
        product(&direction, &mut image);
        let along = dot(&direction, &image);
        if along <= 0.0 {
            break;
        }
        let length = size / along;
        for (((x, r), d), v) in x.iter_mut().zip(&mut residual).zip(&direction).zip(&image) {
            *x += length * d;
            *r -= length * v;
        }
        let scaled = precondition(&residual);
        let next = dot(&residual, &scaled);
        for (d, s) in direction.iter_mut().zip(&scaled) {
            *d = s + next / size * *d;
        }
        size = next;
    }
}

/// Solves `A x = b` for a symmetric, positive definite `A`, `[m, m]`; only the lower half is read.
pub fn cholesky(matrix: &[f64], b: &[f64]) -> Vec<f64> {
    let m = b.len();
    let mut l = vec![0.0; m * m];
    let mut y = vec![0.0; m];
    for r in 0..m {
        for c in 0..=r {
            let mut v = matrix[r * m + c];
            for t in 0..c {
                v -= l[r * m + t] * l[c * m + t];
            }
            l[r * m + c] = if r == c { v.max(1e-12).sqrt() } else { v / l[c * m + c] };
        }
        let before: f64 = (0..r).map(|t| l[r * m + t] * y[t]).sum();
        y[r] = (b[r] - before) / l[r * m + r];
    }
    let mut x = vec![0.0; m];
    for r in (0..m).rev() {
        let after: f64 = (r + 1..m).map(|t| l[t * m + r] * x[t]).sum();
        x[r] = (y[r] - after) / l[r * m + r];
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_solvers_agree() {
        // A'A + I for a fixed, irregular A.
        let n = 40;
        let a: Vec<f64> = (0..n * n).map(|i| ((i * i + 7 * i) % 101) as f64 / 101.0 - 0.5).collect();
        let mut matrix = vec![0.0; n * n];
        for i in 0..n {
            for k in 0..n {
                let product: f64 = (0..n).map(|t| a[t * n + i] * a[t * n + k]).sum();
                matrix[i * n + k] = product + f64::from(u8::from(i == k));
            }
        }
        let b: Vec<f64> = (0..n).map(|i| (i % 5) as f64 - 1.5).collect();
        let direct = cholesky(&matrix, &b);
        let times = |x: &[f64], image: &mut Vec<f64>| {
            image.clear();
            image.extend(matrix.chunks(n).map(|row| row.iter().zip(x).map(|(a, x)| a * x).sum::<f64>()));
        };
        let mut iterated = vec![0.0; n];
        let diagonal: Vec<f64> = (0..n).map(|i| matrix[i * n + i]).collect();
        conjugate_gradients(times, &diagonal, &b, 1e-5, &mut iterated);
        let mut image = vec![];
        times(&direct, &mut image);
        for i in 0..n {
            assert!((direct[i] - iterated[i]).abs() < 1e-3 * (1.0 + direct[i].abs()), "{} {}", direct[i], iterated[i]);
            assert!((image[i] - b[i]).abs() < 1e-4, "{} is not {}", image[i], b[i]);
        }
    }
}

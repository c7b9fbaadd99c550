//! Runs a library on untrusted bytes and turns a panic into an error.
//!
//! The Parquet reader panics on some damaged files. A bad file must give an error that names it, without a message from inside
//! the library by the panic hook. The hook is unchanged for every other panic.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

static HOOK: Once = Once::new();

/// Runs `read`; returns the text of an error or of a panic.
///
/// Data borrowed by `read` may be half changed after a panic and must not be used again.
pub fn guarded<T, E: std::fmt::Display>(read: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !GUARDED.try_with(Cell::get).unwrap_or(false) {
                before(info);
            }
        }));
    });
    let outer = GUARDED.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(read));
    GUARDED.set(outer);
    match outcome {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(cause) => {
            let text = cause.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Err(format!("the file is damaged ({text})"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::guarded;

    #[test]
    fn a_panic_is_an_error_with_its_message() {
        assert_eq!(guarded(|| Ok::<_, String>(3)), Ok(3));
        assert_eq!(guarded(|| Err::<(), _>("no")), Err("no".to_owned()));
        let empty: &[u8] = &[];
        let text = guarded(|| Ok::<_, String>(empty[3])).unwrap_err();
        assert!(text.contains("damaged") && text.contains("index out of bounds"), "{text}");
    }
}

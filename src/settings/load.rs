//! Loads a valid [`Configuration`] from a TOML file and `--set`.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::files;

/// Maximum size of a resolved configuration; one with a thousand days has a tenth of this.
const CONFIG_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("cannot read the configuration {path}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}: {reason}", path = path.display())]
    Syntax { path: PathBuf, reason: String },
    #[error("{place}: unknown key `{key}`{}", nearest.as_ref().map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
    UnknownKey { place: String, key: String, nearest: Option<String> },
    #[error("--set {text}: write it as key=value, for example --set run.seed=7")]
    SetForm { text: String },
    #[error("configuration key `{key}` {why}")]
    Value { key: String, why: String },
    #[error("configuration: {0}")]
    Shape(String),
}

/// A configuration that can be loaded from a TOML file and `--set`.
pub trait Configuration: Default + serde::Serialize + serde::de::DeserializeOwned {
    /// Sections and keys whose values are files or directories.
    const PATHS: &'static [(&'static str, &'static str)];

    /// Checks what the types cannot.
    ///
    /// # Errors
    /// The first key whose value cannot be used, with a valid alternative.
    fn validate(&self) -> Result<(), SettingsError>;

    /// Returns the fully resolved configuration as TOML; loading it gives the same one.
    fn to_toml(&self) -> String {
        toml::to_string_pretty(self).expect("settings are plain values")
    }

    /// Reads a resolved configuration that a run wrote.
    ///
    /// # Errors
    /// If the file is unreadable, is a configuration of another version, or has a value that cannot be used.
    fn read_resolved(path: &Path) -> anyhow::Result<Self> {
        use anyhow::Context as _;

        let text = files::read(path, CONFIG_BYTES).map_err(anyhow::Error::from);
        let text = text.and_then(|bytes| Ok(String::from_utf8(bytes)?));
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let settings: Self =
            toml::from_str(&text).with_context(|| format!("{} is not a resolved configuration", path.display()))?;
        settings.validate().with_context(|| format!("{} cannot be used", path.display()))?;
        Ok(settings)
    }
}

/// Loads a configuration: the defaults, then the file, then each `key=value` of `sets`.
///
/// Relative log directories in the file are resolved against the file's folder first, then against the current directory; those
/// of `sets` against the current directory.
///
/// # Errors
/// An unreadable file, a syntax error with its line, an unknown key with the nearest one, a value of the wrong
/// type or out of range.
pub fn load<C: Configuration>(path: &Path, sets: &[String]) -> Result<C, SettingsError> {
    let text = std::fs::read_to_string(path).map_err(|source| SettingsError::Read { path: path.to_owned(), source })?;
    let mut table: Table =
        toml::from_str(&text).map_err(|e| SettingsError::Syntax { path: path.to_owned(), reason: e.to_string() })?;
    let known = known_keys::<C>();
    check_keys(&table, "", &known, &|key| match line_of(&text, key) {
        Some(line) => format!("{}: line {line}", path.display()),
        None => path.display().to_string(),
    })?;
    // Errors of the table have no line numbers; errors of the text do.
    toml::from_str::<C>(&text).map_err(|e| SettingsError::Syntax { path: path.to_owned(), reason: e.to_string() })?;
    let folder = path.parent().unwrap_or(Path::new(""));
    for (section, key) in C::PATHS {
        if let Some(Value::Table(section)) = table.get_mut(*section)
            && let Some(paths) = section.get_mut(*key)
        {
            resolve(paths, Some(folder));
        }
    }
    let mut settings: C = shape(&table).map_err(SettingsError::Shape)?;
    for set in sets {
        apply::<C>(&mut table, set, &known)?;
        settings = shape(&table).map_err(|why| SettingsError::Shape(format!("--set {set}: {why}")))?;
    }
    settings.validate()?;
    Ok(settings)
}

/// Returns the first line of a configuration that contains `key`, a dotted path.
fn line_of(text: &str, key: &str) -> Option<usize> {
    let mut section = String::new();
    let position = text.lines().position(|line| {
        let line = line.trim();
        let path = if let Some(header) = line.strip_prefix('[') {
            section = header.split(']').next().unwrap_or(header).trim().to_owned();
            section.clone()
        } else {
            let name = line.split('=').next().unwrap_or(line).trim();
            if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
        };
        path.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    position.map(|i| i + 1)
}

/// Converts a table whose keys have been checked to settings.
fn shape<C: Configuration>(table: &Table) -> Result<C, String> {
    Value::Table(table.clone()).try_into().map_err(|e: toml::de::Error| e.to_string().trim().replace('\n', " "))
}

fn apply<C: Configuration>(table: &mut Table, set: &str, known: &[String]) -> Result<(), SettingsError> {
    let (key, value) = set.split_once('=').ok_or_else(|| SettingsError::SetForm { text: set.to_owned() })?;
    let key = key.trim();
    if !known.iter().any(|k| k == key) {
        return Err(unknown(format!("--set {set}"), key, known));
    }
    // A value that is not TOML is a bare string: --set learner.critic=scalar.
    let mut value = toml::from_str::<Table>(&format!("v = {value}"))
        .ok()
        .and_then(|mut t| t.remove("v"))
        .unwrap_or_else(|| Value::String(value.trim().to_owned()));
    if C::PATHS.iter().any(|(section, name)| key == format!("{section}.{name}")) {
        resolve(&mut value, None);
    }
    let mut parts: Vec<&str> = key.split('.').collect();
    let last = parts.pop().unwrap_or(key);
    let mut place = table;
    for part in parts {
        place = match place.entry(part).or_insert_with(|| Value::Table(Table::new())) {
            Value::Table(inner) => inner,
            _ => return Err(SettingsError::Value { key: part.to_owned(), why: "is a section, not a value".into() }),
        };
    }
    place.insert(last.to_owned(), value);
    Ok(())
}

/// Makes a path, or those of a list, absolute if they exist; others stay unchanged, and opening them names them in an error.
fn resolve(list: &mut Value, folder: Option<&Path>) {
    let items = match list {
        Value::Array(items) => items.as_mut_slice(),
        one => std::slice::from_mut(one),
    };
    for item in items {
        let Value::String(text) = item else { continue };
        if text.is_empty() {
            continue;
        }
        let found = folder
            .map(|f| f.join(&*text))
            .into_iter()
            .chain([PathBuf::from(&*text)])
            .find_map(|p| p.canonicalize().ok());
        if let Some(found) = found {
            *text = found.to_string_lossy().into_owned();
        }
    }
}

/// Returns every key of the configuration, sections included, as dotted paths.
fn known_keys<C: Configuration>() -> Vec<String> {
    fn walk(table: &Table, prefix: &str, keys: &mut Vec<String>) {
        for (key, value) in table {
            let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            if let Value::Table(inner) = value {
                walk(inner, &path, keys);
            }
            keys.push(path);
        }
    }
    let mut keys = Vec::new();
    if let Ok(Value::Table(table)) = Value::try_from(C::default()) {
        walk(&table, "", &mut keys);
    }
    keys
}

fn check_keys(
    table: &Table,
    prefix: &str,
    known: &[String],
    place: &dyn Fn(&str) -> String,
) -> Result<(), SettingsError> {
    for (key, value) in table {
        let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        if !known.contains(&path) {
            return Err(unknown(place(&path), &path, known));
        }
        if let Value::Table(inner) = value {
            check_keys(inner, &path, known, place)?;
        }
    }
    Ok(())
}

fn unknown(place: String, key: &str, known: &[String]) -> SettingsError {
    // First a slip of the pen, then the same name in another section, then what is similar.
    let rank = |k: &String| {
        let distance = strsim::damerau_levenshtein(k, key);
        let rank = match distance {
            0..=2 => 0,
            _ if name_of(k) == name_of(key) => 1,
            _ if distance <= 2 + k.len() / 4 => 2,
            _ => return None,
        };
        Some((rank, distance))
    };
    let nearest = known.iter().filter_map(|k| Some((rank(k)?, k))).min().map(|(_, k)| k.clone());
    SettingsError::UnknownKey { place, key: key.to_owned(), nearest }
}

/// Returns the last segment of a dotted key.
fn name_of(key: &str) -> &str {
    key.rsplit_once('.').map_or(key, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    const DAYS: &str = "[data]\ntrain = [\"a\"]\nvalidation = [\"b\"]\n";

    #[test]
    fn misspelt_key_names_file_line_and_the_nearest_key() {
        let f = file(&format!("{DAYS}[learner]\npublish_evry = 3\n"));
        let message = load::<Settings>(f.path(), &[]).unwrap_err().to_string();
        assert!(message.contains("line 5"), "{message}");
        assert!(message.contains("did you mean `learner.publish_every`"), "{message}");
    }

    /// A key in the wrong section got no suggestion, or a similar one of that section.
    #[test]
    fn a_key_of_another_section_is_proposed_before_a_similar_one() {
        let f = file(DAYS);
        for (wrong, right) in [
            ("policy.score_mode=all", "score_mode"),
            ("learner.outlook=true", "policy.outlook"),
            ("run.max_updates=3", "budget.max_updates"),
            ("learner.publish_evry=3", "learner.publish_every"),
            ("checkpoint.every=3", "checkpoint.every_s"),
        ] {
            let message = load::<Settings>(f.path(), &[wrong.into()]).unwrap_err().to_string();
            assert!(message.ends_with(&format!("did you mean `{right}`?")), "{wrong}: {message}");
        }
    }

    #[test]
    fn set_overrides_the_file_and_bare_words_are_strings() {
        let f = file(&format!("{DAYS}[learner]\ncritic = \"quantile\"\n"));
        let sets = ["learner.critic=scalar".into(), "run.seed=9".into(), "budget.max_seconds=2.5".into()];
        let s: Settings = load(f.path(), &sets).unwrap();
        assert_eq!((s.learner.critic, s.run.seed), (super::super::Critic::Scalar, 9));
        assert!(load::<Settings>(f.path(), &["run.sed=1".into()]).unwrap_err().to_string().contains("run.seed"));
    }

    #[test]
    fn resolved_copy_loads_to_the_same_settings() {
        let f = file(DAYS);
        let s: Settings = load(f.path(), &[]).unwrap();
        let again = file(&s.to_toml());
        assert_eq!(load::<Settings>(again.path(), &[]).unwrap(), s);
    }

    #[test]
    fn automatic_actors_become_a_number_when_they_are_loaded() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let f = file(&format!("{DAYS}[actors]\ncount = \"auto\"\n"));
        let s: Settings = load(f.path(), &[]).unwrap();
        assert_eq!(s.actors.count, super::super::actors_for(cores));
        assert!(s.to_toml().contains(&format!("count = {}\n", s.actors.count)), "the copy holds the number");
        let f = file(DAYS);
        assert_eq!(load::<Settings>(f.path(), &["actors.count=auto".into()]).unwrap().actors.count, s.actors.count);
        assert_eq!(load::<Settings>(f.path(), &[]).unwrap().actors.count, 2, "without the key as ever");
        for wrong in ["actors.count=many", "actors.count=-1", "actors.count=1.5"] {
            let message = load::<Settings>(f.path(), &[wrong.into()]).unwrap_err().to_string();
            assert!(message.contains("a number of actors or \"auto\""), "{wrong}: {message}");
        }
    }

    /// NaN was accepted as a reward weight and gave NaN parameters; such a configuration also differed from its own copy.
    #[test]
    fn every_key_that_is_a_number_refuses_what_is_not_finite() {
        let f = file(DAYS);
        let Value::Table(table) = Value::try_from(Settings::default()).unwrap() else { panic!("not a table") };
        let mut seen = 0;
        for (section, keys) in &table {
            for (key, _) in keys.as_table().into_iter().flatten().filter(|(_, v)| v.is_float()) {
                let key = format!("{section}.{key}");
                for value in ["nan", "inf", "-inf"] {
                    let message = load::<Settings>(f.path(), &[format!("{key}={value}")]).unwrap_err().to_string();
                    assert!(message.contains(&key), "{key}={value}: {message}");
                }
                seen += 1;
            }
        }
        assert!(seen > 30, "{seen}");
    }

    #[test]
    fn unusable_values_name_their_key() {
        let f = file(DAYS);
        for (set, key) in [
            ("learner.batch=100", "learner.batch"),
            ("actors.count=0", "actors.count"),
            ("actors.overflow=overwrite", "actors.regions"),
            ("learner.lambda=1.5", "learner.lambda"),
            ("checkpoint.every_s=-1", "checkpoint.every_s"),
            ("checkpoint.keep=0", "checkpoint.keep"),
            ("watchdog.grace_s=nan", "watchdog.grace_s"),
        ] {
            let message = load::<Settings>(f.path(), &[set.into()]).unwrap_err().to_string();
            assert!(message.contains(key), "{set}: {message}");
        }
    }
}

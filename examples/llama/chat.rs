//! Chat templates, as Hugging Face has them: Jinja, with what Python's strings can do.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use jiff::{ZonedDateTime, fmt::strtime};
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, Value as JinjaValue, context, syntax::SyntaxConfig,
};
use minijinja_contrib::pycompat;
use serde::Deserialize;
use serde_json::Value;

/// A template by itself, which comes before one in [`TOKENIZER_CONFIG`].
pub const TEMPLATE: &str = "chat_template.jinja";
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// What errors call the template, before the line.
const NAME: &str = "chat_template";

/// Of several templates, the one for plain chat.
const DEFAULT: &str = "default";

#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Json {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error(
        "{} has no chat template, neither {TEMPLATE} nor `chat_template` in {TOKENIZER_CONFIG}: \
         it is no model to chat with, or one of these files is missing",
        folder.display()
    )]
    NoTemplate { folder: PathBuf },
    #[error(
        "`chat_template` in {} has no template named `{DEFAULT}`, but: {names}. \
         Write the one you want to {TEMPLATE} beside it",
        path.display()
    )]
    NoDefault { path: PathBuf, names: String },
    #[error("the chat template in {} fails: {source}", path.display())]
    Template { path: PathBuf, source: Error },
}

/// How a model wants a conversation written.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// By their names in templates: `bos_token`, `eos_token` and the like.
    special_tokens: BTreeMap<String, String>,
    path: PathBuf,
}

/// The parts of a `tokenizer_config.json` that concern chats.
#[derive(Default, Deserialize)]
struct TokenizerConfig {
    chat_template: Option<Templates>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "`chat_template` is neither a template nor a list of templates with names"
)]
enum Templates {
    One(String),
    Named(Vec<Named>),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

impl ChatTemplate {
    /// The template in a model's folder.
    pub fn of_model(folder: &Path) -> Result<Self, ChatError> {
        let config_path = folder.join(TOKENIZER_CONFIG);
        let config = match read(&config_path)? {
            Some(text) => serde_json::from_str(&text).map_err(|source| ChatError::Json {
                path: config_path.clone(),
                source,
            })?,
            None => TokenizerConfig::default(),
        };
        let path = folder.join(TEMPLATE);
        let (path, template) = match (read(&path)?, config.chat_template) {
            (Some(template), _) => (path, template),
            (None, Some(templates)) => {
                let template = templates.default(&config_path)?;
                (config_path, template)
            }
            (None, None) => {
                let folder = folder.to_owned();
                return Err(ChatError::NoTemplate { folder });
            }
        };
        match environment(template) {
            Ok(environment) => Ok(Self {
                environment,
                special_tokens: special_tokens(config.others),
                path,
            }),
            Err(source) => Err(ChatError::Template { path, source }),
        }
    }

    /// The token that ends an answer, if the folder names one.
    pub fn end(&self) -> Option<&str> {
        self.special_tokens.get("eos_token").map(String::as_str)
    }

    /// A conversation up to where the model's answer begins. It has the special tokens that the model
    /// wants, also the one to begin with.
    pub fn render(&self, system: Option<&str>, user: &str) -> Result<String, ChatError> {
        let message = |role: &str, content: &str| context! { role, content };
        let system = system.map(|content| message("system", content));
        let messages: Vec<_> = system.into_iter().chain([message("user", user)]).collect();
        let special_tokens = self.special_tokens.iter();
        let special_tokens = special_tokens.map(|(name, token)| (name.as_str(), token.as_str()));
        let variables = context! {
            messages,
            add_generation_prompt => true,
            tools => (),
            documents => (),
            ..JinjaValue::from_pairs(special_tokens)
        };
        let template = self.environment.get_template(NAME);
        let text = template.and_then(|template| template.render(variables));
        text.map_err(|source| ChatError::Template {
            path: self.path.clone(),
            source,
        })
    }
}

impl Templates {
    fn default(self, path: &Path) -> Result<String, ChatError> {
        match self {
            Self::One(template) => Ok(template),
            Self::Named(mut all) => match all.iter().position(|named| named.name == DEFAULT) {
                Some(at) => Ok(all.swap_remove(at).template),
                None => {
                    let names: Vec<_> = all.into_iter().map(|named| named.name).collect();
                    Err(ChatError::NoDefault {
                        path: path.to_owned(),
                        names: names.join(", "),
                    })
                }
            },
        }
    }
}

/// The text of a file; None if there is no such file.
fn read(path: &Path) -> Result<Option<String>, ChatError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => {
            let path = path.to_owned();
            Err(ChatError::Read { path, source })
        }
    }
}

/// Those of a tokenizer's fields that are special tokens, each a text or an object that has it.
fn special_tokens(fields: BTreeMap<String, Value>) -> BTreeMap<String, String> {
    let tokens = fields.into_iter().filter_map(|(name, value)| {
        let token = match value {
            Value::String(token) => Some(token),
            Value::Object(mut fields) => match fields.remove("content") {
                Some(Value::String(token)) => Some(token),
                _ => None,
            },
            _ => None,
        };
        token
            .filter(|_| name.ends_with("_token"))
            .map(|token| (name, token))
    });
    tokens.collect()
}

/// As Hugging Face sets Jinja up.
fn environment(template: String) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()?;
    environment.set_syntax(syntax);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |why: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, why))
    });
    environment.add_function("strftime_now", |format: String| {
        strtime::format(format, &ZonedDateTime::now())
            .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
    });
    // Python's strings go on in the next line so, and these do not.
    let template = template.replace("\\\n", "");
    environment.add_template_owned(NAME, template)?;
    Ok(environment)
}

//! Text to tokens, and back while they come.

use std::path::{Path, PathBuf};

use super::{checkpoint::TOKENIZER, config::LlamaConfig};

#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error("cannot read {}: {why}", path.display())]
    Read { path: PathBuf, why: String },
    #[error("{} has {tokens} tokens, and the model {vocabulary}", path.display())]
    Vocabulary {
        path: PathBuf,
        tokens: usize,
        vocabulary: usize,
    },
    #[error("cannot encode the text: {0}")]
    Encode(String),
    #[error("cannot decode token {token}: {why}")]
    Decode { token: u32, why: String },
    #[error("the prompt is empty, and the model has no token to begin a text with")]
    NoPrompt,
}

pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    path: PathBuf,
}

impl Tokenizer {
    pub fn read(path: &Path) -> Result<Self, TokenizerError> {
        let inner =
            tokenizers::Tokenizer::from_file(path).map_err(|error| TokenizerError::Read {
                path: path.to_owned(),
                why: error.to_string(),
            })?;
        Ok(Self {
            inner,
            path: path.to_owned(),
        })
    }

    /// The tokenizer in a model's folder.
    pub fn of_model(folder: &Path, config: &LlamaConfig) -> Result<Self, TokenizerError> {
        let tokenizer = Self::read(&folder.join(TOKENIZER))?;
        let tokens = tokenizer.vocabulary();
        if tokens > config.vocab_size {
            return Err(TokenizerError::Vocabulary {
                path: tokenizer.path,
                tokens,
                vocabulary: config.vocab_size,
            });
        }
        Ok(tokenizer)
    }

    /// One more than the highest token.
    pub fn vocabulary(&self) -> usize {
        let tokens = self.inner.get_vocab(true);
        tokens
            .values()
            .max()
            .map_or(0, |highest| *highest as usize + 1)
    }

    pub fn token(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text)
    }

    /// The tokens of a text, with those that the model's tokenizer puts around every text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.tokens(text, true)
    }

    /// The tokens of a conversation that a chat template wrote, with the special tokens that it has.
    pub fn encode_chat(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        match self.tokens(text, false)? {
            tokens if tokens.is_empty() => Err(TokenizerError::NoPrompt),
            tokens => Ok(tokens),
        }
    }

    fn tokens(&self, text: &str, special: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.encode_fast(text, special);
        Ok(encoding
            .map_err(|error| TokenizerError::Encode(error.to_string()))?
            .get_ids()
            .to_vec())
    }

    /// As [`encode`](Self::encode), but at least one token: a model cannot go on from nothing.
    pub fn encode_prompt(
        &self,
        text: &str,
        config: &LlamaConfig,
    ) -> Result<Vec<u32>, TokenizerError> {
        let tokens = self.encode(text)?;
        match config.bos_token_id {
            _ if !tokens.is_empty() => Ok(tokens),
            Some(begin) if (begin as usize) < config.vocab_size => Ok(vec![begin]),
            _ => Err(TokenizerError::NoPrompt),
        }
    }

    /// Decodes tokens as they come: gives, for each, what is certain of the text by then.
    pub fn stream(&self) -> impl FnMut(u32) -> Result<String, TokenizerError> {
        let mut stream = self.inner.decode_stream(true);
        move |token| match stream.step(token) {
            Ok(text) => Ok(text.unwrap_or_default()),
            Err(error) => Err(TokenizerError::Decode {
                token,
                why: error.to_string(),
            }),
        }
    }
}

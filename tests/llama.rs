//! The decoder and checkpoint reader that the examples share, against plain numpy (`tiny-llama/make.py`).

#[path = "../examples/llama/mod.rs"]
mod llama;

use std::{fs, ops::Range, path::Path};

use burn::tensor::{DType, Int, Tensor, TensorData, bf16};
use burn_flex::Flex;
use burn_offload::{ByteSize, OffloadPolicy, Offloaded, Report, place};
use serde_json::{Value, json};

use llama::{
    chat::{self, ChatTemplate},
    checkpoint::{self, Checkpoint, CheckpointError},
    config::{ConfigError, LlamaConfig},
    generation::{GenerationError, Sequence, generate},
    model::Llama,
    quantize::{Bits, quantize},
    sample::{NotANumber, Sampler, Sampling},
    tokenizer::Tokenizer,
};

type B = Offloaded<Flex>;

fn tiny() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tiny-llama"))
}

fn kjv() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/kjv"))
}

fn load(folder: &Path, dtype: Option<DType>) -> Result<Llama<B>, CheckpointError> {
    let checkpoint = Checkpoint::open(folder)?;
    let policy = OffloadPolicy::nothing();
    let (model, _) = checkpoint.load(dtype, &Default::default(), &policy, |_| {})?;
    Ok(model)
}

fn tokens_and_logits() -> (Tensor<B, 2, Int>, Tensor<B, 3>) {
    let answer: Value =
        serde_json::from_str(&fs::read_to_string(tiny().join("answer.json")).unwrap()).unwrap();
    let tokens: Vec<Vec<i32>> = serde_json::from_value(answer["tokens"].clone()).unwrap();
    let logits: Vec<Vec<Vec<f32>>> = serde_json::from_value(answer["logits"].clone()).unwrap();
    let (batch, length, vocabulary) = (logits.len(), logits[0].len(), logits[0][0].len());
    let tokens = TensorData::new(tokens.concat(), [batch, length]);
    let logits = TensorData::new(logits.concat().concat(), [batch, length, vocabulary]);
    let device = Default::default();
    (
        Tensor::from_data(tokens, &device),
        Tensor::from_data(logits, &device),
    )
}

fn distance<const D: usize>(a: Tensor<B, D>, b: Tensor<B, D>) -> f32 {
    let distance = a.cast(DType::F32) - b.cast(DType::F32);
    distance.abs().max().into_scalar()
}

#[test]
fn logits_are_those_of_numpy() {
    let (tokens, expected) = tokens_and_logits();
    let model = load(tiny(), None).unwrap();
    let logits = model.forward(tokens.clone(), &mut model.cache());
    assert!(distance(logits, expected.clone()) < 1e-4);

    for (dtype, tolerance) in [(DType::F16, 0.05), (DType::BF16, 0.4)] {
        let model = load(tiny(), Some(dtype)).unwrap();
        let logits = model.forward(tokens.clone(), &mut model.cache());
        assert_eq!(logits.dtype(), dtype);
        let distance = distance(logits, expected.clone());
        assert!(distance < tolerance, "{dtype:?}: {distance}");
    }
}

#[test]
fn a_cache_changes_no_logits() {
    let (tokens, expected) = tokens_and_logits();
    let model = load(tiny(), None).unwrap();
    let [batch, length] = tokens.dims();

    // In every two pieces, and the frame that training uses.
    for cut in 1..length {
        let mut cache = model.cache();
        let first = model.forward(tokens.clone().slice([0..batch, 0..cut]), &mut cache);
        assert_eq!(cache.len(), cut);
        let second = model.forward(tokens.clone().slice([0..batch, cut..length]), &mut cache);
        let whole = Tensor::cat(vec![first, second], 1);
        assert!(distance(whole, expected.clone()) < 1e-4, "cut at {cut}");
    }
    let framed = model.forward_frame(tokens.clone(), &model.frame(length));
    assert!(distance(framed, expected.clone()) < 1e-4);

    // One by one, and past the room that a cache begins with.
    let mut cache = model.cache();
    let again = 60;
    let long = tokens.repeat_dim(1, again);
    let whole = model.forward(long.clone(), &mut model.cache());
    for at in 0..length * again {
        let token = long.clone().slice([0..batch, at..at + 1]);
        let next = model.next_logits(token, &mut cache);
        let expected = whole.clone().slice([0..batch, at..at + 1]).squeeze_dim(1);
        assert!(distance(next, expected) < 1e-4, "at {at}");
    }
}

#[test]
fn saved_and_loaded_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (tokens, _) = tokens_and_logits();
    for tied in [false, true] {
        let config = LlamaConfig {
            tie_word_embeddings: tied,
            // Enough for threads to share the work of turning a weight.
            hidden_size: 520,
            intermediate_size: 2100,
            ..Checkpoint::open(tiny()).unwrap().config().clone()
        };
        let model = Llama::<B>::new(&config, &Default::default());
        checkpoint::save(&model, &config, folder.path()).unwrap();
        let opened = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(opened.config(), &config);

        let bf16 = load(folder.path(), None).unwrap();
        let f32 = load(folder.path(), Some(DType::F32)).unwrap();
        // Rounded as `half` rounds; Flex's own cast goes by way of f64, and is off at times.
        let numbers = |model: &Llama<B>| {
            let weight = model.model.layers[1].mlp.up_proj.weight.val();
            weight.into_data().iter::<bf16>().collect::<Vec<_>>()
        };
        assert!(numbers(&bf16) == numbers(&model));
        assert!(numbers(&f32) == numbers(&model));
        assert_eq!(bf16.model.norm.weight.val().dtype(), DType::BF16);
        assert_eq!(bf16.lm_head.is_none(), tied);
        let logits = f32.forward(tokens.clone(), &mut f32.cache());
        let expected = model.forward(tokens.clone(), &mut model.cache());
        assert!(distance(logits, expected) < 0.05);
    }
}

/// A copy of the tiny model with another configuration.
fn with_config(change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut config: Value =
        serde_json::from_str(&fs::read_to_string(tiny().join("config.json")).unwrap()).unwrap();
    change(&mut config);
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    fs::copy(
        tiny().join("model.safetensors"),
        folder.path().join("model.safetensors"),
    )
    .unwrap();
    folder
}

#[test]
fn errors_name_what_is_wrong() {
    let message = |folder: &Path| load(folder, None).unwrap_err().to_string();

    for (change, parts) in [
        (
            ("model_type", json!("gemma")),
            &["`model_type` is \"gemma\"", "config.json"][..],
        ),
        (
            ("rope_scaling", json!({"rope_type": "yarn", "factor": 8.0})),
            &["`rope_scaling.rope_type`", "yarn"],
        ),
        (
            ("attention_bias", json!(true)),
            &["no tensor", "self_attn.q_proj.bias"],
        ),
        (("hidden_act", json!("gelu")), &["`hidden_act` is \"gelu\""]),
        (
            ("num_key_value_heads", json!(3)),
            &["`num_key_value_heads` is 3"],
        ),
        (("head_dim", json!(7)), &["`head_dim` is 7"]),
        (("rms_norm_eps", json!(0.0)), &["`rms_norm_eps`"]),
        (
            ("hidden_size", json!("wide")),
            &["invalid type", "config.json"],
        ),
        (
            ("intermediate_size", json!(41)),
            &["gate_proj.weight` is [40, 24]", "[41, 24]"],
        ),
        (
            ("num_hidden_layers", json!(1)),
            &["9 tensors", "model.layers.1.input_layernorm.weight"],
        ),
        (
            ("num_hidden_layers", json!(3)),
            &["no tensor for the parameter `model.layers.2.input_layernorm.weight`"],
        ),
    ] {
        let (field, value) = change;
        let folder = with_config(|config| config[field] = value);
        let message = message(folder.path());
        for part in parts {
            assert!(message.contains(part), "{field}: {message}");
        }
    }

    let folder = with_config(|_| {});
    let weights = folder.path().join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    fs::write(&weights, &bytes[..bytes.len() - 1]).unwrap();
    assert!(message(folder.path()).contains("model.safetensors: "));
    fs::write(&weights, []).unwrap();
    assert!(message(folder.path()).contains("model.safetensors"));
    fs::remove_file(&weights).unwrap();
    assert!(message(folder.path()).contains("has neither"));
    fs::write(folder.path().join("model.safetensors.index.json"), "{}").unwrap();
    assert!(message(folder.path()).contains("weight_map"));
    assert!(message(Path::new("/nowhere")).contains("cannot read /nowhere/config.json"));
}

#[test]
fn a_generation_config_adds_tokens_that_end_a_text() {
    let folder = with_config(|config| config["eos_token_id"] = 2.into());
    let path = folder.path().join("generation_config.json");
    fs::write(&path, r#"{"eos_token_id": [2, 9], "temperature": 0.6}"#).unwrap();
    let opened = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(opened.config().eos_token_ids, [2, 9]);
    fs::write(&path, r#"{"eos_token_id": "two"}"#).unwrap();
    let error = Checkpoint::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("generation_config.json"), "{error}");
}

#[test]
fn tied_models_may_bring_the_copy() {
    let folder = with_config(|config| config["tie_word_embeddings"] = true.into());
    assert!(load(folder.path(), None).unwrap().lm_head.is_none());
}

#[test]
fn configurations_have_defaults() {
    let config = LlamaConfig::from_json(
        r#"{"model_type": "llama", "vocab_size": 8, "hidden_size": 12, "intermediate_size": 4,
            "num_hidden_layers": 1, "num_attention_heads": 3,
            "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}}"#,
    )
    .unwrap();
    assert_eq!((config.num_key_value_heads, config.head_dim), (3, 4));
    assert_eq!(config.rope_theta, 500_000.0);
    assert!(config.eos_token_ids.is_empty());
    let error = LlamaConfig::from_json("{").unwrap_err();
    assert!(matches!(error, ConfigError::Json(_)), "{error}");
}

#[test]
fn quantized_models_are_placed_as_any_and_are_smaller() {
    let (tokens, _) = tokens_and_logits();
    // Rows that are no multiple of a block, so that a matrix has one scale, and rows that are. How far the
    // logits may be away with 8 bits and with 4.
    for (folder, errors) in [(tiny(), [0.1, 0.9]), (kjv(), [0.01, 0.2])] {
        let load = |policy: &OffloadPolicy, bits: Option<Bits>| {
            let checkpoint = Checkpoint::open(folder).unwrap();
            let device = Default::default();
            let dtype = Some(DType::F32);
            let (model, report) = checkpoint
                .load::<B>(dtype, &device, policy, |_| {})
                .unwrap();
            match bits {
                Some(bits) => place(quantize(model, bits), "", policy).unwrap(),
                None => (model, report),
            }
        };
        let logits = |model: &Llama<B>| {
            let logits = model.forward(tokens.clone(), &mut model.cache());
            logits.into_data()
        };
        let size = |report: &Report, name: &str| -> u64 {
            let named = |n: &Option<String>| n.as_deref().is_some_and(|n| n.ends_with(name));
            let parameters = report.parameters.iter();
            parameters.filter(|p| named(&p.name)).map(|p| p.bytes).sum()
        };

        let whole = OffloadPolicy::device_budget(ByteSize::b(0));
        let (model, before) = load(&whole, None);
        let full = logits(&model);
        // The host budget is the device's, whatever models are on it.
        drop(model);
        // Flex has a byte for a weight of four bits too.
        for (bits, error) in [Bits::Q8, Bits::Q4].into_iter().zip(errors) {
            let (resident, report) = load(&OffloadPolicy::nothing(), Some(bits));
            assert_eq!(report.offloaded_bytes(), 0, "{report}");
            let expected = logits(&resident);
            drop(resident);

            let (model, after) = load(&whole, Some(bits));
            assert_eq!(after.resident_bytes(), 0, "{after}");
            assert_eq!(logits(&model), expected, "{bits:?}");
            let shrunk = size(&before, "proj.weight") as f64 / size(&after, "proj.weight") as f64;
            assert!(shrunk > 3.4, "{bits:?}: {shrunk}\n{after}");
            assert_eq!(size(&before, "norm.weight"), size(&after, "norm.weight"));
            drop(model);

            let half = OffloadPolicy::host_budget(ByteSize::b(after.offloaded_bytes() / 2));
            let (model, report) = load(&half, Some(bits));
            assert!(
                report.offloaded_bytes() > 0 && report.resident_bytes() > 0,
                "{report}"
            );
            assert!(
                report.offloaded_bytes() <= after.offloaded_bytes() / 2,
                "{report}"
            );
            assert_eq!(logits(&model), expected, "{bits:?}, half");

            let values = |data: &TensorData| data.iter::<f32>().collect::<Vec<_>>();
            let (full, expected) = (values(&full), values(&expected));
            let squares = |values: Vec<f32>| values.iter().map(|v| v * v).sum::<f32>().sqrt();
            let away = full.iter().zip(&expected).map(|(a, b)| a - b).collect();
            let away = squares(away) / squares(full);
            assert!(away > 0.0 && away < error, "{bits:?}: {away}");
        }
    }
}

fn sampler(temperature: f32, top_k: Option<usize>, top_p: Option<f32>) -> Sampler {
    Sampler::new(Sampling {
        temperature,
        top_k,
        top_p,
        seed: 5,
    })
}

#[test]
fn samples_as_asked() {
    let logits = [0.0, 3.0, 1.0, 3.0, f32::NEG_INFINITY];
    assert_eq!(sampler(0.0, None, None).choose(&logits), Ok(1));
    assert_eq!(sampler(1.0, Some(1), None).choose(&logits), Ok(1));
    let seen = |mut sampler: Sampler| {
        let mut seen = [0; 5];
        for _ in 0..2000 {
            seen[sampler.choose(&logits).unwrap() as usize] += 1;
        }
        seen
    };
    // e^0 : e^3 : e^1 : e^3 of 2000.
    let all = seen(sampler(1.0, None, None));
    for (seen, expected) in all.into_iter().zip([46, 914, 124, 914, 0]) {
        assert!(i32::abs(seen - expected) <= 90, "{all:?}");
    }
    assert_eq!(all[4], 0);
    let [none, _, few, _, _] = seen(sampler(1.0, Some(3), None));
    assert!(none == 0 && few > 0);
    let [none, one, nor, other, _] = seen(sampler(1.0, None, Some(0.9)));
    assert!((none, nor) == (0, 0) && one > 0 && other > 0);
    assert_eq!(seen(sampler(1.0, None, Some(0.1)))[1], 2000);
    assert_eq!(
        sampler(1.0, None, None).choose(&[f32::NAN, 0.0]),
        Err(NotANumber)
    );
}

#[test]
fn generates_what_greedy_decoding_of_the_whole_gives() {
    let model = load(tiny(), None).unwrap();
    let prompt = [5, 6, 7];
    let mut whole: Vec<i32> = prompt.into();
    for _ in 0..10 {
        let data = TensorData::new(whole.clone(), [1, whole.len()]);
        let tokens = Tensor::<B, 2, Int>::from_data(data, &Default::default());
        let next = model.next_logits(tokens, &mut model.cache()).argmax(1);
        whole.push(next.into_scalar());
    }
    let run = |count: usize, stop: &[u32]| {
        let mut tokens = Vec::new();
        let sequence = Sequence {
            prompt: &prompt.map(|token| token as u32),
            count,
            sampler: sampler(0.0, None, None),
        };
        let speed = generate(&model, vec![sequence], stop, |_, token| {
            tokens.push(token as i32);
            Ok::<(), GenerationError>(())
        });
        (tokens, speed.unwrap().decode.0)
    };
    assert_eq!(run(10, &[]), (whole[3..].to_vec(), 9));
    assert_eq!(run(1, &[]), (whole[3..4].to_vec(), 0));
    let stop = whole[6];
    let before = whole[3..].iter().position(|token| *token == stop).unwrap();
    assert_eq!(
        run(10, &[stop as u32]),
        (whole[3..3 + before].to_vec(), before)
    );
}

#[test]
fn padding_changes_no_logits() {
    let (tokens, expected) = tokens_and_logits();
    let model = load(tiny(), None).unwrap();
    let [batch, length] = tokens.dims();
    let padding: Vec<usize> = (0..batch).map(|row| 2 * (batch - 1 - row)).collect();
    let widest = padding[0];
    // Any token serves as padding, and what follows it is cut where the batch is.
    let rows = padding.iter().enumerate().map(|(row, padding)| {
        let text = tokens.clone().slice([row..row + 1, 0..length - widest]);
        let filler = Tensor::full([1, *padding], 3, &model.device());
        let rest = length - widest + padding..length;
        let rest = tokens.clone().slice([row..row + 1, rest]);
        Tensor::cat(vec![filler, text, rest], 1).slice([0..1, 0..length])
    });
    let padded = Tensor::cat(rows.collect(), 0);
    for cut in [length, 1, widest + 1] {
        let mut cache = model.padded_cache(padding.clone());
        let mut pieces = Vec::new();
        let mut start = 0;
        while start < length {
            let end = (start + cut).min(length);
            let piece = padded.clone().slice([0..batch, start..end]);
            pieces.push(model.forward(piece, &mut cache));
            start = end;
        }
        let logits = Tensor::cat(pieces, 1);
        for (row, padding) in padding.iter().enumerate() {
            let text = logits.clone().slice([row..row + 1, *padding..length]);
            let wanted = expected.clone().slice([row..row + 1, 0..length - padding]);
            let far = distance(text, wanted);
            assert!(far < 1e-4, "row {row}, cut {cut}: {far}");
        }
    }
}

#[test]
fn a_batch_gives_each_prompt_the_text_it_has_alone() {
    let checkpoint = Checkpoint::open(kjv()).unwrap();
    let config = checkpoint.config();
    let tokenizer = Tokenizer::of_model(kjv(), config).unwrap();
    let texts = [
        "In the beginning",
        "And",
        "The LORD is my shepherd; I shall not want. He maketh me",
        "Jesus wept.",
    ];
    let prompts = texts.map(|text| tokenizer.encode_prompt(text, config).unwrap());
    let counts = [24, 20, 16, 12];
    for (dtype, temperature) in [
        (None, 0.0),
        (Some(DType::F32), 0.0),
        (Some(DType::F32), 0.6),
    ] {
        let model = load(kjv(), dtype).unwrap();
        let run = |rows: Range<usize>, stop: &[u32]| {
            let mut answers = vec![Vec::new(); rows.len()];
            let sequences = rows.map(|row| Sequence {
                prompt: &prompts[row],
                count: counts[row],
                sampler: sampler(temperature, None, None),
            });
            generate(&model, sequences.collect(), stop, |row, token| {
                answers[row].push(token);
                Ok::<(), GenerationError>(())
            })
            .unwrap();
            answers
        };
        let all = 0..prompts.len();
        let mut alone: Vec<_> = all.clone().flat_map(|row| run(row..row + 1, &[])).collect();
        assert_eq!(run(all.clone(), &[]), alone, "{dtype:?}, {temperature}");
        assert!(alone.iter().map(Vec::len).eq(counts));

        // Each text ends where it would alone, while others go on.
        let stop = [alone[0][7], alone[1][2]];
        for text in &mut alone {
            let end = text.iter().position(|token| stop.contains(token));
            text.truncate(end.unwrap_or(text.len()));
        }
        assert_eq!(run(all, &stop), alone, "{dtype:?}, {temperature}");
        assert!(alone.iter().any(|text| text.len() != alone[0].len()));
    }
}

/// A folder with a chat template in `tokenizer_config.json`.
fn with_template(template: impl Into<Value>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "add_bos_token": true,
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "lstrip": false, "special": true},
        "pad_token": null,
        "chat_template": template.into(),
    });
    let path = folder.path().join(chat::TOKENIZER_CONFIG);
    fs::write(path, config.to_string()).unwrap();
    folder
}

fn render(folder: &Path, system: Option<&str>) -> Result<String, String> {
    let template = ChatTemplate::of_model(folder).map_err(|error| error.to_string())?;
    let text = template.render(system, " Why {{ so }} <blue>?\n");
    text.map_err(|error| error.to_string())
}

const LLAMA3: &str = r#"{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- Always there, also when it is empty. #}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}
    {{- tools | tojson }}
{%- endif %}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"#;

const CHATML: &str = r#"{% for message in messages %}
    {% if loop.first and message.role != 'system' %}
<|im_start|>system
You are helpful.<|im_end|>
    {% endif %}
<|im_start|>{{ message.role }}
{{ message.content.strip() }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"#;

const MISTRAL: &str = r#"{%- set ns = namespace(system='') -%}
{{ bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + ns.system + message['content'] + ' [/INST]' }}
    {%- elif message['content'] | length > 9 %}
        {{- raise_exception('Only short system messages are supported!') }}
    {%- else %}
        {%- set ns.system = message.get('content') + '\n\n' %}
        {%- continue %}
    {%- endif %}
    {%- if message.tool_calls %}{{ eos_token }}{% endif %}
{%- endfor %}"#;

#[test]
fn chat_templates_render_as_hugging_face_has_them() {
    for (template, system, expected) in [
        (
            LLAMA3,
            Some("Be <brief>. "),
            "<s><|start_header_id|>system<|end_header_id|>\n\nBe <brief>.<|eot_id|>\
             <|start_header_id|>user<|end_header_id|>\n\nWhy {{ so }} <blue>?<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            LLAMA3,
            None,
            "<s><|start_header_id|>system<|end_header_id|>\n\n<|eot_id|>\
             <|start_header_id|>user<|end_header_id|>\n\nWhy {{ so }} <blue>?<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            CHATML,
            Some("Be brief."),
            "<|im_start|>system\nBe brief.<|im_end|>\n\
             <|im_start|>user\nWhy {{ so }} <blue>?<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            CHATML,
            None,
            "<|im_start|>system\nYou are helpful.<|im_end|>\n\
             <|im_start|>user\nWhy {{ so }} <blue>?<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            MISTRAL,
            Some("Be brief."),
            "<s>[INST] Be brief.\n\n Why {{ so }} <blue>?\n [/INST]",
        ),
        (MISTRAL, None, "<s>[INST]  Why {{ so }} <blue>?\n [/INST]"),
    ] {
        let folder = with_template(template);
        assert_eq!(render(folder.path(), system).as_deref(), Ok(expected));
    }
    let folder = with_template("{{ 'A text of \\\ntwo lines.' }}");
    let text = render(folder.path(), None);
    assert_eq!(text.as_deref(), Ok("A text of two lines."));
    let folder = with_template("{{ strftime_now('%d %b %Y') }}");
    let today = render(folder.path(), None).unwrap();
    assert_eq!(
        today.split(' ').map(str::len).collect::<Vec<_>>(),
        [2, 3, 4]
    );
}

#[test]
fn a_chat_template_is_found_where_it_is() {
    let folder = with_template(json!([
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": "{{ messages[0].content }}{{ unk_token }}"},
    ]));
    let text = render(folder.path(), Some("plain"));
    assert_eq!(text.as_deref(), Ok("plain"));
    let template = ChatTemplate::of_model(folder.path()).unwrap();
    assert_eq!(template.end(), Some("</s>"));
    fs::write(folder.path().join(chat::TEMPLATE), "its own").unwrap();
    assert_eq!(render(folder.path(), None).as_deref(), Ok("its own"));
    fs::remove_file(folder.path().join(chat::TOKENIZER_CONFIG)).unwrap();
    assert_eq!(render(folder.path(), None).as_deref(), Ok("its own"));
}

#[test]
fn chat_template_errors_name_the_file_and_what_is_wrong() {
    for (template, parts) in [
        (json!(MISTRAL), &["Only short system messages"][..]),
        (json!("\n{{ messages | tojson }}"), &["tojson", ":2"]),
        (json!("{% generation %}"), &["generation", ":1"]),
        (json!("{{ messages[5].content }}"), &["undefined", ":1"]),
        (json!("{{ strftime_now('%') }}"), &["strftime", ":1"]),
        (
            json!([{"name": "rag", "template": ""}]),
            &["`default`", "rag"],
        ),
        (json!(7), &["chat_template"]),
        (json!(null), &["has no chat template"]),
    ] {
        let folder = with_template(template);
        let error = render(folder.path(), Some("Be brief, if you can.")).unwrap_err();
        for part in ["tokenizer_config.json"].iter().chain(parts) {
            assert!(error.contains(part), "{error}");
        }
    }
}

#[test]
fn a_chat_begins_with_one_token_to_begin_with() {
    let folder = tempfile::tempdir().unwrap();
    let begin = "<|endoftext|>";
    let text = fs::read_to_string(kjv().join("tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&text).unwrap();
    // As Llama's tokenizer does, it begins every text.
    let special = json!({"SpecialToken": {"id": begin, "type_id": 0}});
    let sequence = json!({"Sequence": {"id": "A", "type_id": 0}});
    tokenizer["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [special, sequence],
        "pair": [special, sequence],
        "special_tokens": {begin: {"id": begin, "ids": [0], "tokens": [begin]}},
    });
    let path = folder.path().join("tokenizer.json");
    fs::write(&path, tokenizer.to_string()).unwrap();
    let config = json!({
        "bos_token": begin,
        "chat_template": "{{ bos_token }}{{ messages[0].content }}",
    });
    fs::write(
        folder.path().join(chat::TOKENIZER_CONFIG),
        config.to_string(),
    )
    .unwrap();

    let tokenizer = Tokenizer::read(&path).unwrap();
    let text = render(folder.path(), Some("And")).unwrap();
    assert_eq!(text, format!("{begin}And"));
    let plain = tokenizer.encode("And").unwrap();
    assert_eq!(plain[0], 0);
    assert_eq!(tokenizer.encode_chat(&text).unwrap(), plain);
}

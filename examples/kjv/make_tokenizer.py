#!/usr/bin/env python3
"""Trains the byte-level BPE tokenizer of examples/kjv. Needs `pip install tokenizers`.

    python3 make_tokenizer.py kjv.txt tokenizer.json
"""

import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 1024
END_OF_TEXT = "<|endoftext|>"


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    text, out = sys.argv[1:]

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # Every byte is in the first alphabet, so any prompt can be encoded.
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    with open(text, encoding="utf-8") as file:
        characters = file.read()
    # The mark between chapters is no text to learn merges from.
    tokenizer.train_from_iterator(characters.split(END_OF_TEXT), trainer)
    tokenizer.save(out)

    tokens = tokenizer.encode(characters).ids
    assert tokenizer.decode(tokens, skip_special_tokens=False) == characters
    print(f"{out}: {tokenizer.get_vocab_size()} tokens; {text}: {len(characters)} characters, {len(tokens)} tokens")


if __name__ == "__main__":
    main()

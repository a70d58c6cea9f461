"""A tokenizer from the files of a Hugging Face directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from tokenmill.errors import CheckpointError

SPECIAL_TOKEN_NAMES = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip


def load_library(path: Path, settings: Mapping[str, Any]) -> Tokenizer:
    """The library's tokenizer for a directory's tokenizer.json, with tokens that only settings name.

    Whether BOS and EOS are added is up to the post-processor in tokenizer.json; as in transformers,
    add_bos_token and add_eos_token of the settings don't count beside it.

    Raises CheckpointError if the file is missing or malformed.
    """
    file = path / "tokenizer.json"
    if not file.exists():
        raise CheckpointError(
            f"{path} has no tokenizer.json; copy it from the model's page, or make it with "
            f"transformers: AutoTokenizer.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})"
        )
    try:
        library = Tokenizer.from_file(str(file))
    except Exception as error:
        raise CheckpointError(f"{file} is not a tokenizer ({error}); download it again") from error
    _add_missing_tokens(library, settings)
    return library


def read_settings(path: Path) -> dict[str, Any]:
    """tokenizer_config.json, completed by special_tokens_map.json; {} if there is neither."""
    settings = _read_json(path / "special_tokens_map.json")
    return settings | _read_json(path / "tokenizer_config.json")


def special_tokens_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Marks by the names that chat templates use."""
    found = {name: _text_of(settings.get(name)) for name in SPECIAL_TOKEN_NAMES}
    return {name: text for name, text in found.items() if text is not None}


def extra_special_tokens_of(settings: Mapping[str, Any]) -> list[str]:
    """Marks without a name of their own."""
    texts: list[str] = []
    for key in ("additional_special_tokens", "extra_special_tokens"):
        value = settings.get(key)
        entries = (
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        )
        texts += [text for entry in entries if (text := _text_of(entry)) is not None]
    return texts


def added_tokens_of(settings: Mapping[str, Any]) -> list[tuple[int, AddedToken]]:
    """Tokens that the settings list beside the vocabulary, in order of their ids.

    Raises CheckpointError if the list is malformed.
    """
    entries = settings.get("added_tokens_decoder")
    found: dict[int, AddedToken] = {}
    for key, entry in entries.items() if isinstance(entries, dict) else ():
        text = _text_of(entry)
        if not text or not isinstance(entry, dict) or not str(key).isdecimal():
            raise CheckpointError("added_tokens_decoder of tokenizer_config.json is malformed")
        flags = ("special", "single_word", "lstrip", "rstrip", "normalized")
        found[int(key)] = AddedToken(text, **{flag: bool(entry.get(flag)) for flag in flags})
    return sorted(found.items())


def chat_templates_of(path: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name. A file of its own goes before tokenizer_config.json."""
    templates: dict[str, str] = {}
    value = settings.get("chat_template")
    if value is None:
        value = _read_json(path / "chat_template.json").get("chat_template")
    if isinstance(value, str):
        templates["default"] = value
    elif isinstance(value, list):
        for entry in value:
            if not isinstance(entry, dict) or not {"name", "template"} <= entry.keys():
                raise CheckpointError(
                    f"{path / 'tokenizer_config.json'}: a chat template has no name or no text"
                )
            templates[str(entry["name"])] = str(entry["template"])
    alone = path / "chat_template.jinja"
    if alone.exists():
        templates["default"] = _read_text(alone)
    for file in sorted((path / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = _read_text(file)
    return templates


def _add_missing_tokens(library: Tokenizer, settings: Mapping[str, Any]) -> None:
    """Tokens that only tokenizer_config.json knows, in order of their ids."""
    for token_id, token in added_tokens_of(settings):
        if library.token_to_id(token.content) is not None:
            continue
        library.add_tokens([token])
        if library.token_to_id(token.content) != token_id:
            raise CheckpointError(
                f"tokenizer_config.json gives {token.content!r} the id {token_id}, which doesn't "
                "follow the tokens of tokenizer.json; download both files again"
            )


def _text_of(entry: Any) -> str | None:
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else None


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file} can't be read ({error}); download it again") from error


def _read_json(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        value = json.loads(_read_text(file))
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON ({error}); download it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} is not a JSON object; download it again")
    return value

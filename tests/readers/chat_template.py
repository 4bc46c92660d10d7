"""Conversations as transformers writes them with a folder's own chat template.
chat_template.py CONVERSATIONS OUT FOLDER...  CONVERSATIONS: JSON lines {"messages": [...]}. OUT: for each folder and
                                              conversation a JSON line {"text", "ids"}, null where the template refuses it
"""
import json
import sys

from transformers import AutoTokenizer

conversations = [json.loads(line)["messages"] for line in open(sys.argv[1])]
with open(sys.argv[2], "w") as out:
    for folder in sys.argv[3:]:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        for messages in conversations:
            try:
                text = tokenizer.apply_chat_template(messages, tokenize=False)
            except Exception:
                out.write("null\n")
                continue
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            out.write(json.dumps({"text": text, "ids": ids}) + "\n")

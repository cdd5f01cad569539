from __future__ import annotations

import subprocess
import sys


def test_the_package_pulls_in_no_engine():
    code = (
        "import sys, memagent_graph\n"
        "from memagent_graph import MemAgentNode, RedisStore, create_memagent\n"
        "print(sorted({'torch', 'transformers', 'vllm', 'ray', 'langchain'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_an_unknown_name_is_an_attribute_error():
    import memagent_graph

    assert all(hasattr(memagent_graph, name) for name in memagent_graph.__all__)
    assert not hasattr(memagent_graph, "no_such_thing")

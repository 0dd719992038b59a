"""Azure's credentials as its own tools name them, and the buffer on its emulator."""

from __future__ import annotations

import pytest

from penstock.buffer import Consumer, Producer
from penstock.errors import ConfigError, StorageError
from penstock.objects.store import azure_config, open_store

from .azure_emulator import ACCOUNT, KEY, AzureEmulator, azurite

WHOLE = "DefaultEndpointsProtocol=https;AccountName=shop;AccountKey=a2V5==;EndpointSuffix=core.windows.net"


def test_a_connection_string_is_taken_apart():
    expected = {
        "account_name": "shop", "account_key": "a2V5==", "endpoint": "https://shop.blob.core.windows.net",
    }  # fmt: skip
    assert azure_config({"connection_string": WHOLE}, {}) == expected
    assert azure_config({}, {"AZURE_STORAGE_CONNECTION_STRING": WHOLE}) == expected


def test_a_connection_string_with_a_signature_names_the_account_by_its_endpoint():
    signed = "BlobEndpoint=https://shop.blob.core.windows.net/;SharedAccessSignature=sv=2021&sig=x%3D"
    assert azure_config({"connection_string": signed}, {}) == {
        "account_name": "shop", "sas_token": "sv=2021&sig=x%3D", "endpoint": "https://shop.blob.core.windows.net",
    }  # fmt: skip


def test_the_emulators_connection_string_means_the_emulator():
    assert azure_config({"connection_string": "UseDevelopmentStorage=true;"}, {}) == {"use_emulator": "true"}


def test_options_go_before_the_environment():
    environ = {"AZURE_STORAGE_CONNECTION_STRING": WHOLE, "AZURE_STORAGE_ACCOUNT": "other", "AZURE_STORAGE_KEY": "b3Ro"}
    given = {"account_name": "mine", "account_key": "bWlu"}
    assert azure_config(given, environ) == given
    assert azure_config({}, environ)["account_name"] == "shop"


def test_variables_obstore_knows_are_left_to_it():
    environ = {"AZURE_STORAGE_ACCOUNT": "old", "AZURE_STORAGE_ACCOUNT_NAME": "new", "AZURE_STORAGE_KEY": "b2xk"}
    assert azure_config({}, environ) == {"account_key": "b2xk"}


@pytest.mark.parametrize("text, says", [("nonsense", "no value"), ("AccountKey=a2V5", "names no account")])
def test_a_connection_string_that_is_none_is_refused_without_showing_a_key(text: str, says: str):
    with pytest.raises(ConfigError, match=says) as refused:
        azure_config({"connection_string": text}, {})
    assert "a2V5" not in str(refused.value)


if azurite():

    @pytest.mark.parametrize(
        "names",
        [
            ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ENDPOINT"),
            ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY", "AZURE_STORAGE_ENDPOINT"),
            ("AZURE_STORAGE_CONNECTION_STRING",),
        ],
    )
    def test_credentials_and_endpoint_come_from_the_environment(azure: AzureEmulator, names, monkeypatch):
        values = (ACCOUNT, KEY, azure.endpoint)
        if len(names) == 1:
            values = (f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={azure.endpoint};",)
        for name, value in zip(names, values, strict=True):
            monkeypatch.setenv(name, value)
        url = azure.container()
        with Producer(f"{url}/some/prefix", flush_interval=0.001) as producer:
            producer.produce([b"x"]).result(30)
        with Consumer(f"{url}/some/prefix", gc_interval=None) as consumer:
            assert consumer.next_batch().entries == [b"x"]

    def test_a_missing_container_and_a_wrong_key_are_said_plainly(azure: AzureEmulator):
        with pytest.raises(StorageError, match=r"no such bucket or container.*ContainerNotFound") as refused:
            open_store("az://no-such-container", azure.options).put("a/x", b"1")
        assert not refused.value.retryable
        wrong = {**azure.options, "account_key": "a2V5"}
        with pytest.raises(StorageError, match="AuthorizationFailure: Server failed to authenticate") as refused:
            open_store(azure.container(), wrong).put("a/x", b"1")
        assert not refused.value.retryable
        assert "<" not in str(refused.value)

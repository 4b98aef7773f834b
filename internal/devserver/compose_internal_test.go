package devserver

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/tinerun/tine/internal/attributes"
)

// TestComposeFile holds docker-compose.temporal.yml to what the dev server does.
func TestComposeFile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docker-compose.temporal.yml")
	require.NoError(t, err)
	var file struct {
		Services map[string]struct {
			Image     string
			Ports     []string
			Command   []string
			DependsOn map[string]struct{ Condition string } `yaml:"depends_on"`
			Health    map[string]any                        `yaml:"healthcheck"`
			Configs   []struct{ Source, Target string }
			Env       map[string]string `yaml:"environment"`
		}
		Configs map[string]struct{ Content string }
	}
	require.NoError(t, yaml.Unmarshal(text, &file))
	require.NotEmpty(t, file.Services)

	for name, service := range file.Services {
		require.Regexp(t, `^\S+:\d+\.\d+(\.\d+)?(-\S+)?$`, service.Image, "%s: an exact version", name)
		for _, port := range service.Ports {
			require.Regexp(t, `^127\.0\.0\.1:\d+:\d+$`, port, "%s: loopback only", name)
		}
		for other, dependency := range service.DependsOn {
			require.Contains(t, file.Services, other)
			if dependency.Condition == "service_healthy" {
				require.NotEmpty(t, file.Services[other].Health, "%s waits for the health of %s", name, other)
			}
		}
	}
	require.Equal(t, []string{fmt.Sprintf("127.0.0.1:%d:7233", DefaultPort)}, file.Services["temporal"].Ports)
	require.Equal(t, []string{fmt.Sprintf("127.0.0.1:%d:8080", DefaultUIPort)}, file.Services["ui"].Ports)

	mount := file.Services["temporal"].Configs[0]
	require.Equal(t, mount.Target, file.Services["temporal"].Env["DYNAMIC_CONFIG_FILE_PATH"])
	var settings map[string][]struct{ Value any }
	require.NoError(t, yaml.Unmarshal([]byte(file.Configs[mount.Source].Content), &settings))
	got := map[string]any{}
	for key, values := range settings {
		require.Len(t, values, 1, key)
		got[key] = values[0].Value
	}
	require.Equal(t, tuning, got)

	registers := strings.Join(file.Services["namespace"].Command, "\n")
	for name, kind := range attributes.Types() {
		require.Contains(t, registers, fmt.Sprintf("--name %s --type %s", name, kind))
	}
}

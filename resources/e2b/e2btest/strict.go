package e2btest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strings"
)

// maxJSON is far above every request that is JSON.
const maxJSON = 4 << 20

// requireType refuses a request with another content type. A charset may be named if it is UTF-8.
func requireType(h http.Header, want string) error {
	got, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || got != want || params["charset"] != "" && !strings.EqualFold(params["charset"], "utf-8") {
		return fmt.Errorf("content type %q: it must be %s", h.Get("Content-Type"), want)
	}
	return nil
}

// strictJSON decodes a JSON object into the struct that v points to. Unlike encoding/json it
// refuses unknown names, names in another case, and null.
func strictJSON(text []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return fmt.Errorf("invalid JSON: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("invalid JSON: there is more after the object")
	}
	if err := checkNames(tree, reflect.TypeOf(v).Elem(), "body"); err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// checkNames holds a JSON value to the names of a type, at any depth.
func checkNames(v any, t reflect.Type, where string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if v == nil {
		return fmt.Errorf("%s is null", where)
	}
	switch v := v.(type) {
	case []any:
		if t.Kind() != reflect.Slice {
			return fmt.Errorf("%s is an array", where)
		}
		for i, element := range v {
			if err := checkNames(element, t.Elem(), fmt.Sprintf("%s[%d]", where, i)); err != nil {
				return err
			}
		}
	case map[string]any:
		if t == reflect.TypeFor[json.RawMessage]() {
			return nil
		}
		for name, element := range v {
			of, ok := elementType(t, name)
			if !ok {
				return fmt.Errorf("%s has an unknown field %q", where, name)
			}
			if err := checkNames(element, of, where+"."+name); err != nil {
				return err
			}
		}
	}
	return nil
}

// elementType is the type of what has a name in a JSON object of type t.
func elementType(t reflect.Type, name string) (reflect.Type, bool) {
	switch t.Kind() {
	case reflect.Map:
		return t.Elem(), true
	case reflect.Struct:
		for field := range t.Fields() {
			tag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if tag == name {
				return field.Type, true
			}
			if field.Anonymous {
				if of, ok := elementType(field.Type, name); ok {
					return of, true
				}
			}
		}
	}
	return nil, false
}

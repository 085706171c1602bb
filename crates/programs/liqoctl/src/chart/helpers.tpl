
{{- /* The name of an image. */}}
{{- define "liqo.image" -}}
{{- $registry := .root.Values.global.imageRegistry | default .image.registry -}}
{{- with $registry }}{{ . }}/{{ end }}{{ .image.repository -}}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end -}}
{{- end }}

{{- /* The URL of an address. */}}
{{- define "liqo.url" -}}
https://{{ . | trimPrefix "https://" | trimSuffix "/" }}
{{- end }}

{{- /* Liqo's own affinity with the one that a user chose. Each term for nodes keeps Liqo's expressions. */}}
{{- define "liqo.affinity" -}}
{{- $own := fromYaml .own }}
{{- $chosen := .chosen | default dict }}
{{- $required := $own.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution }}
{{- $expressions := (first $required.nodeSelectorTerms).matchExpressions }}
{{- with ((($chosen.nodeAffinity).requiredDuringSchedulingIgnoredDuringExecution).nodeSelectorTerms) }}
{{- $terms := list }}
{{- range . }}
{{- $terms = append $terms (merge (dict "matchExpressions" (concat $expressions (.matchExpressions | default list))) .) }}
{{- end }}
{{- $_ := set $required "nodeSelectorTerms" $terms }}
{{- end }}
{{- with ($chosen.nodeAffinity).preferredDuringSchedulingIgnoredDuringExecution }}
{{- $_ := set $own.nodeAffinity "preferredDuringSchedulingIgnoredDuringExecution" . }}
{{- end }}
{{- range list "podAffinity" "podAntiAffinity" }}
{{- if hasKey $chosen . }}
{{- $_ := set $own . (get $chosen .) }}
{{- end }}
{{- end }}
{{- toYaml $own }}
{{- end }}

{{- /* Not empty if a value sets something: true or false, a number, a text, or a map or list that contains true, a number or a text. */}}
{{- define "liqo.sets" -}}
{{- if or (kindIs "bool" .value) (regexMatch `(^|[:\[])("[^"]|[-0-9]|true)` (toJson .value)) }}true{{ end }}
{{- end }}
